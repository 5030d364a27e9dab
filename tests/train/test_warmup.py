"""The measurement of a few steps, in the process of the test."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from chimera.config.compose import compose, plain
from chimera.data.source import cache
from chimera.errors import UserError
from chimera.train.warmup import COLD, measure
from tests.train import tiny


@pytest.mark.slow
def test_steps_of_random_tokens_and_of_prepared_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny.write(tmp_path)
    monkeypatch.chdir(tmp_path)
    config = plain(compose([*tiny.LINE, "trainer.max_steps=500"]))
    (tmp_path / "first").mkdir()
    found = measure(config, 0.0, time.time(), tmp_path / "first")
    assert (found.prepared, found.total, found.epoch) == (False, 500, None)
    assert found.steps == 1
    assert found.tokens == 2 * 4 * 16
    assert min(found.step, found.validation, found.save, found.start, found.row) > 0
    assert not (tmp_path / "cache").exists()

    from chimera.train.build import make_data

    make_data(config).prepare_data()
    before = {file: file.stat().st_mtime_ns for file in (tmp_path / "cache").rglob("*")}
    (tmp_path / "second").mkdir()
    found = measure(config, 0.0, time.time(), tmp_path / "second")
    assert found.prepared
    assert found.epoch is not None
    assert found.valid == 1
    assert found.tokenizer > 0
    saved = tmp_path / "second" / "run" / "checkpoints" / f"rolling-{COLD + 1}.ckpt"
    assert saved.stat().st_size == found.checkpoint
    assert {file: file.stat().st_mtime_ns for file in (tmp_path / "cache").rglob("*")} == before


def test_labelled_examples_are_not_invented(tmp_path: Path) -> None:
    words = ["preset=finetune", "scale=smoke", f"data.cache_dir={tmp_path}/cache", "logger=none"]
    with pytest.raises(UserError, match="not prepared yet"):
        measure(plain(compose([*words, "trainer.accelerator=cpu"])), 0.0, time.time(), tmp_path)


def test_a_cache_that_is_only_read_builds_nothing(tmp_path: Path) -> None:
    def build(folder: Path) -> dict[str, int]:
        (folder / "file").write_text("x")
        return {"n": 1}

    with pytest.raises(cache.NotCached), cache.reading_only():
        cache.entry(tmp_path / "cache", "kind", "key", build)
    assert not (tmp_path / "cache").exists()
    cache.entry(tmp_path / "cache", "kind", "key", build)
    with cache.reading_only():
        assert cache.entry(tmp_path / "cache", "kind", "key", build)[1] == {"n": 1}
