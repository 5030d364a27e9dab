"""A report says by which command the model was trained that its rows start from."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from chimera.report import provenance


def summary(*configs: dict[str, Any]) -> Any:
    return SimpleNamespace(cells=[SimpleNamespace(config=config) for config in configs])


def test_the_run_that_rows_start_from_is_named_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHIMERA_RUNS", str(tmp_path))
    body = tmp_path / "body-12345678"
    body.mkdir()
    (body / "overrides.txt").write_text("scale=small\ndata.sources=[{path: a b}]\nname=body\n")
    start = {"init_from": "runs/body-12345678", "init_run": "12345678"}
    by_row = {"init_from": "row:saidl/backbone/mlm", "init_run": "12345678"}
    command = "scale=small 'data.sources=[{path: a b}]' name=body"
    (only,) = provenance.start_commands(summary(start, start, {"init_run": None}, {}))
    assert only.endswith(f"train.py {command}")
    assert provenance.start_commands(summary(by_row)) == []


def test_an_export_or_a_run_that_is_not_here_has_no_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHIMERA_RUNS", str(tmp_path))
    assert provenance.start_commands(summary({"init_from": "away", "init_run": "87654321"})) == []
