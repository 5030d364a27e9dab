"""Run each benchmark at a size that takes seconds, without checks of its numbers."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch
from benchmarks.__main__ import main, names
from benchmarks.timing import turns

from benchmarks import data_size, decoding, overhead, profile_step, recall, train_step
from chimera.errors import UserError


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


def test_recall(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recall, "train", partial(recall.train, steps=2))
    trained, position = recall.run("delta", behind=True)
    assert (trained.steps, position) == (2, "none")
