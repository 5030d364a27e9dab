"""Each benchmark at a size that takes seconds: rivals, sizes and counts are right."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
import torch
from benchmarks.__main__ import main, names
from benchmarks.mixers import exponent
from benchmarks.parts import Alone
from benchmarks.peers import Scores, peers
from benchmarks.timing import peak, turns
from torch import Tensor, nn

from benchmarks import (
    data_size,
    decoding,
    forms,
    graft_cost,
    main_job,
    overhead,
    profile_step,
    recall,
    train_step,
)
from chimera.errors import UserError
from chimera.paths import ROOT
from tests.kit import close


@pytest.fixture(autouse=True)
def _threads() -> None:
    """Restore the number of threads, which benchmarks set for the whole process."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def once(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (decoding, profile_step, train_step):
        monkeypatch.setattr(module, "turns", lambda rivals, **_: turns(rivals, rounds=1, warmup=0))


def test_without_a_name_the_benchmarks_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == main(["--help"]) == 0
    said = capsys.readouterr().out
    assert "train_step    Time a training step of our encoder against Hugging Face's" in said
    assert {"mixers", "recall", "overhead"} <= set(names())
    assert not {"parts", "timing", "peers"} & set(names())


def test_mistakes_are_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse() -> None:
        raise UserError("there is no such data")

    monkeypatch.setattr(overhead, "main", refuse)
    said = {
        ("mixer",): "mixer is no benchmark; choose one of compiled, data_size",
        ("overhead",): "there is no such data",
        ("overhead", "mixer=delta"): "overhead takes no words, and was given mixer=delta",
    }
    for words, line in said.items():
        assert main([*words]) == 2
        (got,) = capsys.readouterr().err.splitlines()
        assert got.startswith(f"error: {line}")


def test_data_size(capsys: pytest.CaptureFixture[str]) -> None:
    (row,) = data_size.table((1,))
    assert 1 <= row["mb"] < 1.1
    assert 0.01 < row["peak_gb"] < 0.5
    assert 0 < row["encode"] < row["seconds"]
    assert len(capsys.readouterr().out.splitlines()) == 1


@pytest.mark.slow
def test_overhead(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CHIMERA_RUNS", str(tmp_path))
    monkeypatch.setattr(overhead, "STEPS", 2)
    monkeypatch.setattr(overhead, "TURNS", 1)
    text = tmp_path / "text.txt"
    text.write_text("\n".join(f"The cat number {i} sees house {i % 7}.\n" for i in range(400)))
    small = ["scale=smoke", "logger=none", "model.dim=32", "model.depth=1", "model.heads=4"]
    small += ["data=text", f"data.path={text}", f"data.cache_dir={tmp_path}", "tokenizer=word"]
    monkeypatch.setattr(overhead, "SHAPE", small)
    results = overhead.main()
    assert len(results["platform_seconds"]) == len(results["bare_seconds"]) == 1


def test_train_step(monkeypatch: pytest.MonkeyPatch, once: None) -> None:
    monkeypatch.setattr(train_step, "Model", partial(small_model, train_step.Model))
    for name, value in (("VOCAB", 64), ("BATCH", 2), ("LENGTH", 16)):
        monkeypatch.setattr(train_step, name, value)
    rows = train_step.main()["rows"]
    assert rows["BertForMaskedLM, fp32"]["times_theirs"] == 1
    assert {name.rpartition(", ")[0] for name in rows} == {"BertForMaskedLM", *train_step.ENCODERS}


@pytest.mark.slow
def test_profile_step(monkeypatch: pytest.MonkeyPatch, once: None) -> None:
    for name, value in (("VOCAB", 64), ("BATCH", 2), ("LENGTH", 16), ("STEPS", 1)):
        monkeypatch.setattr(profile_step, name, value)
    lines = {name: profile_step.LINES[name] for name in ("fp32", "fp32, int8")}
    monkeypatch.setattr(profile_step, "LINES", lines)
    rows = profile_step.main()["rows"]
    for row in rows.values():
        assert 0 < row["products"] < 1
        assert len(row["others"]) == profile_step.LARGEST
    assert rows["fp32"]["flops"] == rows["fp32, int8"]["flops"]


def small_model(model: type, **settings: int) -> object:
    return model(**settings | {"dim": 32, "depth": 1, "heads": 4})


def test_decoding(monkeypatch: pytest.MonkeyPatch, once: None) -> None:
    for name, value in (("DIM", 32), ("DEPTH", 1), ("HEADS", 4)):
        monkeypatch.setattr(decoding, name, value)
    assert set(decoding.per_token(["retnet", "attention"], (4, 8))) == {"retnet", "attention"}


def test_the_cache_of_a_graft(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = (300, 600)
    monkeypatch.setattr(graft_cost, "CONTEXTS", lengths)
    monkeypatch.setattr(graft_cost, "TOKENS", 2)
    held = {name: of["cache_bytes"] for name, of in graft_cost.main()["models"].items()}
    keys = [2 * 2 * 32 * 4 * (n + 2) for n in lengths]  # layers, keys and values, width, bytes
    assert held["base"] == held["alpha_0"] == keys
    assert held["alpha_1"][0] == held["alpha_1"][1] < keys[0] / 10
    assert held["max_cache"][0] == held["max_cache"][1]
    assert held["max_cache"][0] > held["alpha_1"][0]
    both = [half - base for half, base in zip(held["alpha_half"], keys, strict=True)]
    assert both[0] == both[1] > 0


def test_the_guide_has_the_measured_cost_of_a_graft() -> None:
    result = json.loads((ROOT / "benchmarks/results/graft_cost.json").read_text())
    lines = "\n".join(graft_cost.page(result))
    assert lines in (ROOT / "docs/guide/tptt.md").read_text(encoding="utf-8")
    models = result["models"]
    growth = {m: of["prefill_s"][-1] / of["prefill_s"][-2] for m, of in models.items()}
    assert growth["alpha_1"] < 2.5 < growth["base"]
    assert growth["max_cache"] < 2.5


def test_recall(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recall, "train", partial(recall.train, steps=2))
    trained, position = recall.run("delta", behind=True)
    assert (trained.steps, position) == (2, "none")


DIM, HEADS, LENGTH = 32, 4, 48


@torch.no_grad()
def with_weights(rival: nn.Module, weights: list[Tensor]) -> nn.Module:
    """Copy the weights into the rival, as float64."""
    for parameter, weight in zip(rival.parameters(), weights, strict=True):
        parameter.copy_(weight)
    return rival.double()


@pytest.mark.parametrize(
    ("rival", "mixer"),
    [
        ("torch SDPA", "attention"),
        ("naive softmax", "attention"),
        ("naive linear", "linear"),
        ("naive retention", "retnet"),
    ],
)
def test_naive_forms_equal_the_mixers(rival: str, mixer: str) -> None:
    torch.manual_seed(0)
    alone = Alone(mixer, DIM, HEADS, LENGTH).double()
    naive = with_weights(peers(DIM, HEADS, LENGTH)[rival], list(alone.parameters()))
    x = torch.randn(1, LENGTH, DIM, dtype=torch.double)
    close(naive(x), alone(x), 1e-6)  # angles and decays are float32


def test_peers_have_as_many_parameters_as_the_mixers() -> None:
    count = {n: sum(p.numel() for p in m.parameters()) for n, m in peers(64, 4, 16).items()}
    for rival, mixer in (("mambapy", "mamba"), ("xlstm parallel", "mlstm")):
        size = sum(p.numel() for p in Alone(mixer, 64, 4, 16).parameters())
        assert count[rival] == size


def test_projections_alone_have_gradients_in_every_projection() -> None:
    rival = peers(DIM, HEADS, LENGTH)["projections alone"]
    assert isinstance(rival, Scores)
    rival(torch.randn(1, 4, DIM)).sum().backward()
    assert all(p.grad is not None for p in rival.parameters())


def test_peak_is_the_largest_memory_at_one_time() -> None:
    start = torch.zeros(2**18)  # 1 MiB

    def work() -> None:
        once = start + 1
        twice = once + 1  # 2 MiB
        del once
        (twice + 1).sum()  # 2 MiB and one number

    assert 2 * 2**20 <= peak(work) < 2 * 2**20 + 4096


def test_exponent_is_the_slope() -> None:
    cost = {512: 7.0, 1024: 3.0, 2048: 12.0, 4096: 48.0}
    assert exponent(cost) == pytest.approx(2)  # 512 is left out


def test_every_answer_is_the_value_of_its_key() -> None:
    ids, answers = recall.task(50, torch.Generator().manual_seed(0))
    assert ids.shape == (50, recall.LENGTH)
    assert answers.shape == (50, recall.QUERIES)
    for sequence, expected in zip(ids.tolist(), answers.tolist(), strict=True):
        pairs = sequence[: 2 * recall.PAIRS]
        values = dict(zip(pairs[::2], pairs[1::2], strict=True))
        assert len(values) == recall.PAIRS  # no key has two values
        assert max(values) < recall.KEYS <= min(values.values())
        queries = sequence[2 * recall.PAIRS :]
        assert [values[key] for key in queries] == expected  # KeyError: a query without a pair


def test_the_pairing_is_drawn_anew_for_each_sequence() -> None:
    ids, _ = recall.task(200, torch.Generator().manual_seed(0))
    pairs = {tuple(pair) for pair in ids[:, : 2 * recall.PAIRS].reshape(-1, 2).tolist()}
    assert len(pairs) == recall.KEYS * recall.VALUES  # every key occurs with every value


def test_the_same_seed_gives_the_same_task() -> None:
    first, again = (recall.task(4, torch.Generator().manual_seed(3))[0] for _ in range(2))
    assert torch.equal(first, again)


def test_attention_learns_within_the_first_steps() -> None:
    model, position = recall.make("attention")
    losses = recall.train(model, 30)
    assert position == "rope"
    assert len(losses) == 30
    assert sum(losses[-5:]) / 5 < sum(losses[:5]) / 5 - 0.1


def test_an_untrained_model_is_no_better_than_guessing() -> None:
    assert recall.evaluate(recall.make("attention")[0]) < 2 / recall.PAIRS


def test_state_is_counted_over_all_layers() -> None:
    dim, depth, heads = recall.SHAPE.dim, recall.SHAPE.depth, recall.SHAPE.heads
    assert recall.state_size(recall.make("attention")[0]) == depth * 2 * recall.LENGTH * dim
    assert recall.state_size(recall.make("retnet")[0]) == depth * dim * dim // (heads // 2)


def test_behind_the_convolution_is_the_same_mixer() -> None:
    model, position = recall.make("delta", behind=True)
    alone, _ = recall.make("delta")
    inner = [type(block.mixer.inner) for block in model.backbone.blocks]
    assert inner == [type(block.mixer) for block in alone.backbone.blocks]
    assert position == "none"


def test_single_rows_join_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine, rows = {"processor": "x"}, {name: {"alone": name} for name in ("a", "b")}
    file = tmp_path / "recall.json"
    file.write_text(json.dumps({"machine": machine, "rows": rows}))
    monkeypatch.setattr(recall, "FILE", file)
    monkeypatch.setattr(recall, "measure", lambda name: {"alone": "new"})
    got = recall.main("b", "c")
    assert got["machine"] == machine
    assert got["rows"] == {"a": {"alone": "a"}, "b": {"alone": "new"}, "c": {"alone": "new"}}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "grows"), [("gated_delta", False), ("attention", True)])
def test_errors_and_bytes(name: str, grows: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forms, "CONTEXTS", (64, 256))
    found = forms.measured(name)
    assert found["decoded_fp64"] < 1e-12
    assert 1e-12 < found["decoded_fp32"] < 1e-4
    short, long = found["state_bytes"].values()
    if grows:  # keys and values of a token, width 64, fp32
        assert (short, long) == (64 * 2 * 64 * 4, 256 * 2 * 64 * 4)
    else:
        assert short == long > 0


def test_an_error_is_a_share_of_the_largest_value() -> None:
    assert forms.error(forms.tokens(3) + 1, forms.tokens(3) + 1) == 0.0


def test_the_job_is_that_of_make_train() -> None:
    lines = (ROOT / "Makefile").read_text(encoding="utf-8").splitlines()
    (line,) = [line for line in lines if line.startswith("RUN ")]
    assert tuple(line.partition("?=")[2].split()) == main_job.JOB


@pytest.mark.slow
def test_a_run_is_measured() -> None:
    found = main_job.measure(("scale=smoke", "logger=none", "trainer.max_steps=2"), 3)
    assert (found["seed"], found["steps"]) == (3, 2)
    assert found["tokens"] == 2 * 8 * 64
    assert found["seconds"] > 0
    assert found["perplexity"] > found["unigram"] > 1
