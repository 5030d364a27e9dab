"""Write run directories of a table with invented results, so that report tests need no training."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

from chimera.callback.log.steps import FIELDS
from chimera.config.compose import compose, plain
from chimera.config.tables import jobs, load
from chimera.rundir.directory import RunDir

#: environment.json of the invented runs.
ENVIRONMENT = {
    "python": "3.11.9",
    "machine": "Linux-test",
    "processor": "Test CPU",
    "cpus": 2,
    "gpu": None,
    "git": {"commit": "a" * 40, "changed": False},
    "packages": {"torch": "2.13.0"},
}


def make(
    name: str,
    values: dict[tuple[str, int], float],
    *,
    overrides: tuple[str, ...] = ("scale=smoke",),
    states: dict[tuple[str, int], dict[str, Any]] | None = None,
    environment: dict[str, Any] | None = None,
) -> None:
    """Write the directories of runs of a table, by (row, seed).

    Args:
        name: name of the table.
        values: results of runs; they are done unless `states` has them.
        overrides: overrides of all jobs of the table.
        states: contents of status.json.
        environment: contents of environment.json.
    """
    states = states or {}
    table = load(name)
    seeds = sorted({seed for _, seed in [*values, *states]})
    for job in jobs(table, list(overrides), seeds):
        cell = (job.row, job.seed)
        if cell not in values and cell not in states:
            continue
        directory = RunDir.of(plain(compose(job.overrides))).path
        directory.mkdir(parents=True)
        write(directory / "environment.json", environment or ENVIRONMENT)
        write(directory / "status.json", states.get(cell, {"state": "DONE"}))
        steps(directory / "steps.csv", start=8.0 + 0.1 * len(job.row))
        if cell in values:
            write(directory / "run.json", record(table.metric, values[cell]))


def record(metric: str, value: float) -> dict[str, Any]:
    """A run.json; what has no slash is a number of the record, as of a run's."""
    here = {metric: value}
    return {
        "metrics": (here if "/" in metric else {}) | {"val/unigram_perplexity": 622.2},
        "parameters": {"total": 1_234_567},
        "bytes": {"total": {"parameters": 1_234_567, "packed": 400_000, "fp16": 2_469_134}},
        "tokens_per_second": 12345.6,
        "wall_seconds": 194.0,
        "validations": [[6, 7.5], [12, 7.0]],
        "data": {"splits": {"train": {"documents": 10, "bytes": 1000, "tokens": 300}}},
    } | ({} if "/" in metric else here)


def steps(file: Path, start: float) -> None:
    with file.open("w", newline="", encoding="utf-8") as opened:
        writer = csv.DictWriter(opened, FIELDS)
        writer.writeheader()
        for step in range(1, 13):
            loss = start - 0.1 * step
            row = {"timestamp": f"2026-01-01T00:00:{step:02}Z", "global_step": step, "loss": loss}
            writer.writerow(dict.fromkeys(FIELDS, 0) | row)


def write(file: Path, value: object) -> None:
    file.write_text(json.dumps(value), encoding="utf-8")
