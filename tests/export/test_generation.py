"""transformers' `generate` decodes with our states: the same tokens as our own decoding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from chimera.contract_tests import zoo
from chimera.generate.settings import Generation
from chimera.generate.text import decode
from chimera.model.decode import pad_left
from tests.export.folders import folder

NEW = 9
PROMPTS = [zoo.tokens(1, n)[0].tolist() for n in (11, 4, 1)]
QUICK = ("attention", "retnet", "delta", "mamba")
REST = [
    (group, name)
    for group in ("mixer", "position", "quant")
    for name in zoo.names(group)
    if name not in (*QUICK, "none")
]


def decoder(to: Path, **choices: str) -> tuple[Any, Any]:
    """Our model and transformers' of one folder, in float64."""
    ours = folder(to, causal=True, **choices)
    theirs = AutoModelForCausalLM.from_pretrained(to, trust_remote_code=True)
    theirs.generation_config.eos_token_id = None
    return ours.double(), theirs.double()


def generated(model: Any, rows: list[list[int]], **how: Any) -> torch.Tensor:
    """New tokens of left-padded prompts."""
    ids, mask = pad_left(rows, 0)
    mask = torch.ones_like(ids) if mask is None else mask.long()
    out = model.generate(ids, attention_mask=mask, max_new_tokens=NEW, do_sample=False, **how)
    return out[:, ids.shape[1] :]


def check(to: Path, **choices: str) -> None:
    ours, theirs = decoder(to, **choices)
    settings = Generation(run="x", greedy=True, max_new=NEW)
    want = torch.stack(list(decode(ours, PROMPTS, settings, pad_id=0, end_id=None)), 1)
    lengths: list[int] = []
    hook = theirs.backbone.embedding.register_forward_pre_hook(
        lambda _module, given: lengths.append(given[0].shape[1])
    )
    assert torch.equal(generated(theirs, PROMPTS), want)
    assert lengths == [11, *[1] * (NEW - 1)]  # the prompt once, then a token at a time
    hook.remove()
    # Beams change places: the rows of a cache follow them.
    cached = generated(theirs, PROMPTS, num_beams=3)
    assert torch.equal(cached, generated(theirs, PROMPTS, num_beams=3, use_cache=False))


@pytest.mark.parametrize("mixer", QUICK)
def test_generate_gives_our_tokens_one_at_a_time(mixer: str, tmp_path: Path) -> None:
    check(tmp_path / mixer, mixer=mixer)


@pytest.mark.slow
@pytest.mark.parametrize(("group", "name"), REST)
def test_generate_gives_our_tokens_with_every_part(group: str, name: str, tmp_path: Path) -> None:
    check(tmp_path / name, **{"mixer": "gqa", group: name})


def test_a_cache_continues_and_cannot_go_back(tmp_path: Path) -> None:
    _, model = decoder(tmp_path / "x", mixer="interleaved")
    ids = zoo.tokens(2, 10)
    with torch.no_grad():
        whole = model(ids).logits
        first = model(ids[:, :7], use_cache=True)
        rest = model(ids[:, 7:], past_key_values=first.past_key_values, logits_to_keep=2)
    assert rest.past_key_values.get_seq_length() == 10
    torch.testing.assert_close(first.logits, whole[:, :7], atol=1e-9, rtol=1e-9)
    torch.testing.assert_close(rest.logits, whole[:, 8:], atol=1e-9, rtol=1e-9)
    with pytest.raises(ValueError, match="cannot go back"):
        rest.past_key_values.crop(3)
    assert model(ids).past_key_values is None


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_changes_no_logits(side: str, tmp_path: Path) -> None:
    _, model = decoder(tmp_path / "x", mixer="interleaved", position="alibi")
    text = zoo.tokens(1, 6)
    padded = torch.zeros(1, 9, dtype=torch.long)
    mask = torch.zeros_like(padded)
    place = slice(3, 9) if side == "left" else slice(0, 6)
    padded[:, place], mask[:, place] = text, 1
    with torch.no_grad():
        alone = model(text).logits
        torch.testing.assert_close(
            model(padded, attention_mask=mask).logits[:, place], alone, atol=1e-9, rtol=1e-9
        )
