"""Every (row, seed) of a table as it stands on disk. Reads run directories, writes nothing."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from chimera.config.compose import compose, plain
from chimera.config.tables import Job, Table, jobs
from chimera.rundir.directory import RunDir
from chimera.rundir.identity import flat

State = Literal["done", "running", "stopped", "cut off", "failed", "missing"]


@dataclass(frozen=True)
class Cell:
    """One run of a table.

    Args:
        row, seed: which one.
        state: `cut off` is a run whose process is gone without a word.
        why: of a failed or stopped run; how far a running one is.
        value: of the table's metric; None unless done.
        directory: of the run, whether it exists or not.
        config: as it is composed now.
        record: run.json, empty before the run is done.
        environment: environment.json, empty before the run has started.
    """

    row: str
    seed: int
    state: State
    why: str
    value: float | None
    directory: Path
    config: dict[str, Any] = field(repr=False)
    record: dict[str, Any] = field(repr=False)
    environment: dict[str, Any] = field(repr=False)

    def fact(self, key: str) -> float | None:
        """A number of run.json by its dotted key (`parameters.total`); None if it is not there."""
        found = flat(self.record).get(key)
        return float(found) if isinstance(found, int | float) and math.isfinite(found) else None


def cells(table: Table, words: list[str], seeds: list[int]) -> list[Cell]:
    """All cells of a table, row by row.

    Args:
        table: which.
        words: overrides that all its jobs have, such as `scale=small`.
        seeds: one run of each row for each.

    Raises:
        UserError: a row that does not compose.
    """
    return [cell(table, job) for job in jobs(table, words, seeds)]


def cell(table: Table, job: Job) -> Cell:
    """The run of one job as it stands now."""
    config = plain(compose(job.overrides))
    directory = RunDir.of(config)
    record = directory.record()
    value = metric(record, table.metric)
    state, why = _state(directory)
    if state == "done" and value is None:
        state, why = "failed", f"its run.json holds no finite {table.metric}"
    if state != "done":
        value, record = None, {}
    environment = directory.path / "environment.json"
    return Cell(
        row=job.row,
        seed=job.seed,
        state=state,
        why=why,
        value=value,
        directory=directory.path,
        config=config,
        record=record,
        environment=json.loads(environment.read_text("utf-8")) if environment.exists() else {},
    )


def metric(record: dict[str, Any], key: str) -> float | None:
    """A metric of a run, or any other number of its record; None where there is no finite one."""
    found = record.get("metrics", {}).get(key, flat(record).get(key))
    return float(found) if isinstance(found, int | float) and math.isfinite(found) else None


def _state(directory: RunDir) -> tuple[State, str]:
    status = directory.status()
    at = f"step {status['step']} of {status['max_steps']}" if status.get("max_steps") else ""
    match status.get("state"):
        case None:
            return "missing", ""
        case "DONE":
            return "done", ""
        case "FAILED":
            return "failed", str(status.get("why", "no reason was recorded"))
        case "STOPPED":
            return "stopped", str(status.get("why", at))
        case _:
            return ("running" if directory.alive() else "cut off"), at
