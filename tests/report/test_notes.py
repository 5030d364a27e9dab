"""Sentences that explain a report's numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

from chimera.report import notes
from chimera.report.table_results import read_results
from chimera.report.write import write
from tests.report.runs import ENVIRONMENT, make

TABLE, OVERRIDES = "bitnet_qdyt/norms", ["scale=smoke"]
ROWS = ("layernorm", "static_tanh", "qdyt")


def test_times_of_two_processors_are_said_to_be_means_over_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHIMERA_RUNS", str(tmp_path / "runs"))
    other = {**ENVIRONMENT, "processor": "Other CPU"}
    make(TABLE, {(row, 0): 9.0 for row in ROWS})
    assert not notes.processors(read_results(TABLE, OVERRIDES, [0]))

    make(TABLE, {(ROWS[0], 1): 8.0}, environment=other)
    said = notes.processors(read_results(TABLE, OVERRIDES, [0, 1]))
    assert "Other CPU (1 run of `layernorm`); Test CPU (3 runs)" in said

    make(TABLE, {(ROWS[1], 1): 8.0}, environment=other)
    said = notes.processors(read_results(TABLE, OVERRIDES, [0, 1]))
    assert "Other CPU (2 runs); Test CPU (3 runs)" in said
    assert "do not compare" in said
    assert "share the seed but not the rounding" in said

    make(TABLE, {(ROWS[2], 1): 8.0}, environment=other)
    write(TABLE, OVERRIDES, [0, 1], tmp_path / "out")
    text = (tmp_path / "out/report.md").read_text(encoding="utf-8")
    assert "The runs used 2 processors: Other CPU (seed 1); Test CPU (seed 0)." in text
    assert "do not compare" not in text


def test_a_run_on_a_gpu_is_of_the_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHIMERA_RUNS", str(tmp_path / "runs"))
    make(TABLE, {(row, 0): 9.0 for row in ROWS}, environment={**ENVIRONMENT, "gpu": "Card"})
    make(TABLE, {(row, 1): 9.0 for row in ROWS})
    said = notes.processors(read_results(TABLE, OVERRIDES, [0, 1]))
    assert "Card (seed 0); Test CPU (seed 1)" in said

    idle = (*OVERRIDES, "trainer.accelerator=cpu")
    with_card = {**ENVIRONMENT, "gpu": "Card"}
    make(TABLE, {(row, 0): 9.0 for row in ROWS}, overrides=idle, environment=with_card)
    make(TABLE, {(row, 1): 9.0 for row in ROWS}, overrides=idle)
    summary = read_results(TABLE, list(idle), [0, 1])
    assert all(cell.state == "done" for cell in summary.cells)
    assert not notes.processors(summary)
