"""The table of start models and rates on CoLA is read from records."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from benchmarks.stored import Pair

from benchmarks import cola


def run(row: str, start: str, rate: float, score: float, seed: int = 0) -> Pair:
    config = {"table": {"row": row}, "init_run": start, "optim": {"lr": rate}, "seed": seed}
    return config, {"metrics": {"val/mcc": score}}


@pytest.fixture(autouse=True)
def bodies(monkeypatch: pytest.MonkeyPatch) -> None:
    data: dict[str, dict[str, Any]] = {
        "docs": {},
        "text": {"sources": [{"path": "data/wiki"}, {"path": "data/more.txt"}]},
    }

    def records(root: Path | None, end: str) -> Iterator[Pair]:
        yield {"data": data[end]}, {}

    monkeypatch.setattr(cola, "records", records)


def test_a_line_for_each_start_model_and_row() -> None:
    runs = [
        run("full", "docs", 1e-3, 0.1),
        run("full", "docs", 3e-3, 0.05),
        run("full", "text", 1e-3, 0.2),
        run("head_only", "docs", 1e-3, 0.04),
        run("full", "docs", 1e-3, 0.9, seed=1),  # another seed
        run("lora", "docs", 1e-3, 0.8),  # another row
    ]
    lines = [line for line in cola.start_models(runs).splitlines() if line.startswith("| ")]
    assert lines[0] == "| row | start model, trained on | rate 0.001 | rate 0.003 |"
    assert lines[2:] == [
        "| full | English: wiki, more.txt | 0.200 | – |",
        "| full | Python's documentation | 0.100 | 0.050 |",
        "| head_only | Python's documentation | 0.040 | – |",
    ]


def test_without_runs_there_is_no_table(tmp_path: Path) -> None:
    assert cola.start_models([]) == ""
    assert cola.page(tmp_path) == ""
