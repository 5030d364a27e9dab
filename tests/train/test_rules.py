"""A run is judged by both rules of QDyT's mean, on one training (SPEC N3)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from chimera.cli.train import main
from tests.train import tiny


def test_each_run_has_the_metrics_of_the_other_rule(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    tiny.write(tmp_path)
    line = [*tiny.LINE, "norm=qdyt", "trainer.max_steps=3"]
    found = {}
    for mean in ("running", "token"):
        assert main([*line, f"norm.inference_mean={mean}", f"run_dir={mean}"]) == 0
        found[mean] = json.loads((tmp_path / mean / "run.json").read_text())
    assert tiny.losses(tmp_path / "running") == tiny.losses(tmp_path / "token")
    running, token = found["running"], found["token"]
    assert set(running["other_rules"]) == {"token_mean"}
    for key in ("val/loss", "val/perplexity", "val/accuracy"):
        assert running["other_rules"]["token_mean"][key] == token["metrics"][key]
        assert token["other_rules"]["running_mean"][key] == running["metrics"][key]
    assert running["metrics"]["val/loss"] != token["metrics"]["val/loss"]
