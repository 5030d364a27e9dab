"""Read state and result of every (row, seed) of a table from its run directory or its record."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from chimera.config.compose import compose, plain
from chimera.config.start_model import applicable
from chimera.config.tables import RowRun, Table, jobs
from chimera.dotted import flatten
from chimera.rundir.directory import RunDir
from chimera.rundir.environment import computed_on
from chimera.rundir.records import Record, Records
from chimera.rundir.safe_io import read_json
from chimera.rundir.steps import losses

#: Resolved configurations by row and seed.
Configs = Mapping[tuple[str, int], dict[str, Any]]


@dataclass(frozen=True)
class Cell:
    """One run of a table.

    Args:
        row, seed: row of the table and seed of the run.
        state: done, running, stopped, failed or missing; `cut off` if its process is gone and
            recorded no reason.
        why: reason of a failed or stopped run; progress of a running one.
        value: value of the table's metric; None unless done.
        directory: directory of the run; it need not exist.
        config: configuration as composed now.
        record: contents of run.json; empty unless done.
        environment: contents of environment.json; empty before the run has started.
        steps: thinned columns of its step log; empty if that is in the directory.
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
    steps: dict[str, list[Any]] = field(repr=False, default_factory=dict)

    @property
    def computed_on(self) -> str | None:
        """Name of the GPU or processor that trained the run; None if it is not recorded."""
        return computed_on(self.environment, self.config)

    def losses(self) -> tuple[list[float], list[float]]:
        """Steps and training losses of the run; a record has those of some steps."""
        return losses(self.steps or self.directory / "steps.csv")

    def fact(self, key: str) -> float | None:
        """Number in run.json by its dotted key (`parameters.total`); None if absent."""
        return _finite(flatten(self.record).get(key))


def cells(table: Table, overrides: list[str], seeds: list[int], configs: Configs) -> list[Cell]:
    """All cells of a table, row by row.

    Args:
        table: the table.
        overrides: overrides of all its jobs, such as `scale=small`.
        seeds: seeds of the runs of each row.
        configs: configurations that are composed already.

    Raises:
        UserError: a row does not compose.
    """
    records = Records()
    all_cells = []
    for job in _planned(table, overrides, seeds):
        config = configs.get((job.row, job.seed)) or plain(compose(list(job.overrides)))
        directory = RunDir.of(config)
        all_cells.append(_cell(table, job, config, directory, records.find(config, directory)))
    records.tell()
    return all_cells


def _planned(table: Table, overrides: list[str], seeds: list[int]) -> list[RowRun]:
    """Runs of the table, each with the overrides that are for its row."""
    listed = jobs(table, overrides, seeds)
    return [replace(job, overrides=applicable(job.overrides)) for job in listed]


def metric(record: dict[str, Any], key: str) -> float | None:
    """A metric of a run, or another number of its record; None if absent or not finite."""
    return _finite(record.get("metrics", {}).get(key, flatten(record).get(key)))


def _cell(
    table: Table, job: RowRun, config: dict[str, Any], directory: RunDir, kept: Record | None
) -> Cell:
    result = kept.result if kept else directory.record()
    value = metric(result, table.metric)
    state, why = ("done", "") if kept else _state(directory)
    if state == "done" and value is None:
        state = "failed"
        why = f"run.json has no finite {table.metric}"
    if state != "done":
        value = None
        result = {}
    environment = kept.environment if kept else read_json(directory.path / "environment.json")
    return Cell(
        row=job.row,
        seed=job.seed,
        state=state,
        why=why,
        value=value,
        directory=directory.path,
        config=config,
        record=result,
        environment=environment,
        steps=kept.steps if kept else {},
    )


def _state(directory: RunDir) -> tuple[str, str]:
    """State of a run, and its reason or progress, from status.json."""
    status = directory.status()
    progress = f"step {status['step']} of {status['max_steps']}" if status.get("max_steps") else ""
    match status.get("state"):
        case None:
            return "missing", ""
        case "DONE":
            return "done", ""
        case "FAILED":
            return "failed", str(status.get("why", "no reason was recorded"))
        case "STOPPED":
            return "stopped", str(status.get("why", progress))
        case _:
            return ("running" if directory.is_running() else "cut off"), progress


def _finite(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None
