"""Runs that a report shows twice, by two rules of evaluation, and settings past a scale's bound."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from chimera.report.table_results import read_results
from chimera.report.write import write
from tests.report.runs import make

TABLE = "bitnet_qdyt/norms"
VALUES = {("layernorm", 0): 20.0, ("layernorm", 1): 22.0, ("qdyt", 0): 25.0, ("qdyt", 1): 26.0}


@pytest.fixture(autouse=True)
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHIMERA_RUNS", str(tmp_path / "runs"))


def evaluated(values: dict[int, float]) -> None:
    """Give the runs of `qdyt` the record of an evaluation by token means, by seed."""
    for cell in read_results(TABLE, ["scale=smoke"], list(values)).cells:
        if cell.row == "qdyt":
            other = {"token_mean": {"val/perplexity": values[cell.seed]}}
            record = json.dumps({**cell.record, "other_rules": other})
            (cell.directory / "run.json").write_text(record, encoding="utf-8")


def test_a_row_has_a_line_for_each_rule(tmp_path: Path) -> None:
    make(TABLE, VALUES)
    evaluated({0: 17.0, 1: 19.0})
    summary = write(TABLE, ["scale=smoke"], [0, 1], tmp_path / "out")
    lines = {line.name: line for line in summary.lines}
    assert list(lines) == ["layernorm", "static_tanh", "qdyt", "qdyt_token_mean"]
    token = lines["qdyt_token_mean"]
    assert token.ours is not None
    assert token.difference is not None
    assert (token.ours.mean, token.difference.mean) == (18.0, -7.5)
    # No paper says which rule it means, so the order of rows is judged by both.
    ranked = {(p.first.name, p.second.name): p.agrees for p in summary.pairs}
    assert ranked == {("qdyt", "layernorm"): False, ("qdyt_token_mean", "layernorm"): True}
    assert len(summary.cells) == 6  # no runs of their own
    text = (tmp_path / "out/report.md").read_text(encoding="utf-8")
    assert "QDyT; the same runs evaluated with the token mean (`qdyt_token_mean`) | 19.3 |" in text
    assert "| 18.0 ± 1.4 |" in text


def test_a_run_that_was_not_evaluated_by_the_rule_is_named() -> None:
    make(TABLE, {**VALUES, ("qdyt", 2): 27.0})
    evaluated({0: 17.0, 1: 19.0})
    line = read_results(TABLE, ["scale=smoke"], [0, 1, 2]).lines[-1]
    assert line.result.endswith("(2 of 3 seeds; 1 not evaluated)")


def test_settings_past_the_bounds_of_the_scale_are_named(tmp_path: Path) -> None:
    overrides = ["scale=smoke", "trainer.max_steps=40"]
    make(TABLE, VALUES, overrides=tuple(overrides))
    write(TABLE, overrides, [0, 1], tmp_path / "out")
    text = (tmp_path / "out/report.md").read_text(encoding="utf-8")
    how = "set by the command line or the start model"
    assert f"Beyond the bounds of this scale, {how}: `trainer.max_steps=40` (bound 12)." in text
