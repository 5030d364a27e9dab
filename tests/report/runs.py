"""Write run directories of a table with invented results, so that report tests need no training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from chimera.config.compose import compose, plain
from chimera.config.tables import jobs, load
from chimera.rundir.directory import RunDir
from tests.rundir.kit import ENVIRONMENT, write_run

Record = dict[str, Any]


def make(
    name: str,
    values: dict[tuple[str, int], float],
    *,
    overrides: tuple[str, ...] = ("scale=smoke",),
    states: dict[tuple[str, int], dict[str, Any]] | None = None,
    environment: dict[str, Any] = ENVIRONMENT,
    told: Callable[[str, int, Record], Record] = lambda row, seed, record: record,
) -> None:
    """Write the directories of runs of a table, by (row, seed).

    Args:
        name: name of the table.
        values: results of runs; they are done unless `states` has them.
        overrides: overrides of all jobs of the table.
        states: contents of status.json.
        environment: contents of environment.json.
        told: what run.json holds of a row and seed, from what it holds otherwise.
    """
    states = states or {}
    table = load(name)
    for job in jobs(table, list(overrides), sorted({seed for _, seed in [*values, *states]})):
        cell = (job.row, job.seed)
        if cell in values or cell in states:
            directory = RunDir.of(plain(compose(job.overrides))).path
            status = states.get(cell, {"state": "DONE"})
            made = told(*cell, record(table.metric, values[cell])) if cell in values else None
            write_run(directory, None, made, status=status, environment=environment, steps=12)


def record(metric: str, value: float) -> Record:
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
