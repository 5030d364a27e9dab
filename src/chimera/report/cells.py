"""Every (row, seed) of a table as it stands on disk. Reads run directories, writes nothing."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from chimera.config.compose import compose, plain
from chimera.config.tables import Job, Table, jobs
from chimera.rundir.directory import RunDir
from chimera.rundir.identity import NUMERICS, flatten

#: Row and seed of a run, to its resolved configuration.
Configs = Mapping[tuple[str, int], dict[str, Any]]


@dataclass(frozen=True)
class Cell:
    """One run of a table.

    Args:
        row, seed: which one.
        state: done, running, stopped, failed, missing; `cut off` if its process is gone without
            having said why; `numerics <n>` if it is done and left out, since other runs of the
            table were computed with other numerics.
        why: of a failed, stopped or left-out run; how far a running one is.
        value: of the table's metric; None unless done.
        directory: of the run, whether it exists or not.
        config: as it is composed now.
        record: run.json; empty unless done.
        environment: environment.json; empty before the run has started.
    """

    row: str
    seed: int
    state: str
    why: str
    value: float | None
    directory: Path
    config: dict[str, Any] = field(repr=False)
    record: dict[str, Any] = field(repr=False)
    environment: dict[str, Any] = field(repr=False)

    @property
    def numerics(self) -> int:
        """Of the code that trained it; the first release did not record it."""
        return int(self.record.get("numerics", 1))

    def fact(self, key: str) -> float | None:
        """A number of run.json by its dotted key (`parameters.total`); None if it is not there."""
        return _finite(flatten(self.record).get(key))


def cells(table: Table, overrides: list[str], seeds: list[int], configs: Configs) -> list[Cell]:
    """All cells of a table, row by row, the finished ones of one numerics.

    Args:
        table: which.
        overrides: of all its jobs, such as `scale=small`.
        seeds: one run of each row for each.
        configs: those that are composed already.

    Raises:
        UserError: a row that does not compose.
    """
    found = [
        _cell(table, job, configs.get((job.row, job.seed)) or plain(compose(job.overrides)))
        for job in jobs(table, overrides, seeds)
    ]
    chosen = numerics(found)
    return [
        cell if cell.state != "done" or cell.numerics == chosen else _left_out(cell, chosen)
        for cell in found
    ]


def numerics(of: list[Cell]) -> int:
    """What most finished runs were computed with, the later one of two; the code's without runs."""
    counts = Counter(cell.numerics for cell in of if cell.state == "done")
    return max(counts, key=lambda number: (counts[number], number), default=NUMERICS)


def metric(record: dict[str, Any], key: str) -> float | None:
    """A metric of a run, or any other number of its record; None where there is no finite one."""
    return _finite(record.get("metrics", {}).get(key, flatten(record).get(key)))


def _cell(table: Table, job: Job, config: dict[str, Any]) -> Cell:
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


def _left_out(cell: Cell, chosen: int) -> Cell:
    why = f"left out, since this table is of numerics {chosen}; overwrite=true trains it again"
    return replace(cell, state=f"numerics {cell.numerics}", why=why, value=None, record={})


def _state(directory: RunDir) -> tuple[str, str]:
    """State and reason of a run by its status.json."""
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
            return ("running" if directory.is_running() else "cut off"), at


def _finite(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None
