"""Generation: decoding equals full passes for every mixer, alone and in batches; sampling."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from chimera.config.arguments import read
from chimera.contract_tests import zoo
from chimera.errors import UserError
from chimera.generate.settings import Generation
from chimera.generate.text import _print, choose, decode, generators, probabilities
from chimera.model.decode import pad_left
from chimera.model.language import LanguageModel
from tests.kit import close

GREEDY = Generation(run="x", greedy=True, max_new=9)
PROMPTS = [zoo.tokens(1, n)[0].tolist() for n in (11, 4, 1)]


def build(mixer: str, **choices: str) -> LanguageModel:
    model = zoo.model(causal=True, mixer=mixer, **choices)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.05 * torch.randn_like(p))
    return model.double().eval()


@torch.no_grad()
def by_full_passes(model: LanguageModel, prompt: list[int], count: int) -> tuple[list[int], Tensor]:
    """Greedy continuation without a decoding state: one pass over the whole text per token."""
    ids, logits = list(prompt), []
    for _ in range(count):
        logits.append(model(torch.tensor([ids])).logits[0, -1])
        ids.append(int(logits[-1].argmax()))
    return ids[len(prompt) :], torch.stack(logits)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("mixer", zoo.distinct("mixer"))
def test_greedy_decoding_of_a_ragged_batch_equals_full_passes(mixer: str) -> None:
    model = build(mixer)
    seen: list[Tensor] = []
    model.head.register_forward_hook(lambda _m, _a, out: seen.append(out.flatten(0, -2)))
    made = torch.stack(list(decode(model, PROMPTS, GREEDY, pad_id=0, end_id=None)), 1)
    logits = torch.stack(seen, 1)
    for prompt, ids, got in zip(PROMPTS, made.tolist(), logits, strict=True):
        want, of_full = by_full_passes(model, prompt, GREEDY.max_new)
        assert ids == want
        close(got, of_full, 1e-9)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("position", zoo.names("position"))
def test_every_position_decodes_as_the_full_pass(position: str) -> None:
    model = build("gqa", position=position)
    made = torch.stack(list(decode(model, PROMPTS, GREEDY, pad_id=0, end_id=None)), 1)
    for prompt, ids in zip(PROMPTS, made.tolist(), strict=True):
        assert ids == by_full_passes(model, prompt, GREEDY.max_new)[0]


def test_sampled_tokens_do_not_depend_on_the_batch() -> None:
    model, how = build("gqa"), Generation(run="x", max_new=12, seed=3, temperature=2.0, top_p=0.9)
    together = torch.stack(list(decode(model, PROMPTS, how, pad_id=0, end_id=None)), 1)
    for number, prompt in enumerate(PROMPTS):
        alone = decode(model, [prompt], how, pad_id=0, end_id=None, first=number)
        assert torch.cat(list(alone)).tolist() == together[number].tolist()
    other = torch.stack(
        list(decode(model, PROMPTS, Generation(run="x", max_new=12, seed=4), pad_id=0, end_id=None))
    )
    assert not torch.equal(other.T, together)


def test_a_sequence_stops_at_the_end_token_and_decoding_at_the_last_sequence() -> None:
    model = build("retnet")
    free = torch.stack(list(decode(model, PROMPTS, GREEDY, pad_id=0, end_id=None)), 1).tolist()
    end = free[0][2]
    tokens = torch.stack(list(decode(model, PROMPTS, GREEDY, pad_id=0, end_id=end)), 1).tolist()
    for got, plain in zip(tokens, free, strict=True):
        cut = plain.index(end) if end in plain else len(plain)
        assert got[:cut] == plain[:cut][: len(got)]
        assert set(got[cut:]) <= {end}
    one = list(decode(model, PROMPTS[:1], GREEDY, pad_id=0, end_id=end))
    assert len(one) == free[0].index(end) + 1


def test_too_many_tokens_for_learned_positions_are_refused_before_the_first_token() -> None:
    model = zoo.model(causal=True, position="learned").eval()
    long = Generation(run="x", max_new=32)
    with pytest.raises(UserError, match="learned has max_len=32 positions"):
        next(decode(model, [[1, 2]], long, pad_id=0, end_id=None))
    assert len(list(decode(model, [[1]], long, pad_id=0, end_id=None))) == 32


@pytest.mark.parametrize(("mixer", "position"), [("attention", "learned"), ("aft", "none")])
def test_check_reach_does_not_change_the_model(mixer: str, position: str) -> None:
    model = zoo.model(causal=True, mixer=mixer, position=position, norm="qdyt").train()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    model.check_length(32)
    with pytest.raises(UserError, match="32"):
        model.check_length(33)
    assert model.training
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


def test_padding_is_on_the_left() -> None:
    ids, mask = pad_left([[1, 2, 3], [4]], 0)
    assert ids.tolist() == [[1, 2, 3], [0, 0, 4]]
    assert mask is not None
    assert mask.tolist() == [[True] * 3, [False, False, True]]
    assert pad_left([[1], [2]], 0)[1] is None


LOGITS = torch.tensor([[0.5, 3.0, 1.0, 2.0]], dtype=torch.double).log()


@pytest.mark.parametrize(
    ("how", "want"),
    [
        ({}, [0.5, 3.0, 1.0, 2.0]),
        ({"top_k": 2}, [0, 3.0, 0, 2.0]),
        ({"top_k": 9}, [0.5, 3.0, 1.0, 2.0]),
        ({"top_p": 0.4}, [0, 3.0, 0, 0]),  # 3/6.5 alone reaches it
        ({"top_p": 0.5}, [0, 3.0, 0, 2.0]),
        ({"top_p": 0.0}, [0, 3.0, 0, 0]),
        ({"top_k": 3, "top_p": 0.9}, [0, 3.0, 1.0, 2.0]),
        ({"temperature": 0.5}, [0.25, 9.0, 1.0, 4.0]),
        ({"temperature": 1e-6}, [0, 1.0, 0, 0]),
    ],
)
def test_probabilities(how: dict[str, float], want: list[float]) -> None:
    given = {"temperature": 1.0, "top_k": None, "top_p": 1.0, **how}
    got = probabilities(LOGITS, **given)  # type: ignore[arg-type]
    close(got[0], torch.tensor(want, dtype=torch.double) / sum(want), 1e-12)


def test_tokens_are_drawn_in_proportion() -> None:
    count, how = 20_000, Generation(run="x", top_k=3)
    drawn = choose(LOGITS.expand(count, -1), how, generators(0, 0, count))
    share = torch.bincount(drawn, minlength=4) / count
    want = torch.tensor([0, 3.0, 1.0, 2.0]) / 6
    assert share[0] == 0
    assert (share - want).abs().max() < 0.02


def test_a_terminal_gets_no_control_characters(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _print("\x1b[31m")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    _print("a\x1b[31m\tb\r\n")
    assert capsys.readouterr().out == "\x1b[31ma\ufffd[31m\tb\ufffd\n"


def test_arguments_are_parsed(tmp_path: Path) -> None:
    how = read(
        Generation,
        ["run=x", "prompt=12 = a", "max_new=5", "top_p=0.5", "greedy=true", "seed=7"],
        "",
    )
    assert how == Generation("x", "12 = a", max_new=5, top_p=0.5, greedy=True, seed=7)
    assert read(Generation, ["run=x", "prompt=12"], "").prompt == "12"
    file = tmp_path / "p.txt"
    file.write_bytes("\ufeffone\u2028more\n\r\ntwo\r\n".encode())
    texts = read(Generation, ["run=x", f"prompts={file}"], "").texts()
    assert texts == ["one\u2028more", "two"]
    rows = tmp_path / "p.jsonl"
    rows.write_text('{"prompt": "one"}\n{"prompt": "two\\nlines"}\n')
    assert Generation("x", prompts=str(rows)).texts() == ["one", "two\nlines"]
    rows.write_text('{"prompt": "one"}\n{"text": "two"}\n')
    with pytest.raises(UserError, match=r"p\.jsonl: line 2.*prompt"):
        Generation("x", prompts=str(rows)).texts()


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["prompt=a"], "run= is missing; write generate run="),
        (["run=x", "max_new=0"], "max_new=0 is not allowed; it takes an integer of at least 1"),
        (["run=x", "temperature=0"], "temperature=0 is not allowed"),
        (["run=x", "top_p=1.5"], "top_p=1.5 is not allowed"),
        (["run=x", "temprature=1"], "did you mean 'temperature'"),
        (["run=x", "prompt=a", "prompts=b"], "give one of them"),
        (["run=x", "checkpoint=first"], "one of last, best"),
        (["run=x", "greedy=maybe"], "greedy=maybe is not allowed; it takes true or false"),
    ],
)
def test_bad_arguments_give_one_line(words: list[str], line: str) -> None:
    with pytest.raises(UserError, match=line.replace("?", r"\?")) as refusal:
        read(Generation, words, "generate run=<text>")
    assert "\n" not in str(refusal.value)
