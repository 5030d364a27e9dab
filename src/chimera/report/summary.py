"""A table as numbers: everything that the report's files show, computed once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import Any

from chimera.config.compose import compose, plain
from chimera.config.groups import groups
from chimera.config.tables import Published, Row, Table, jobs, load
from chimera.errors import UserError
from chimera.report import digits
from chimera.report.cells import Cell, Configs, cells, metric, numerics
from chimera.report.stats import Difference, Spread, paired, spread
from chimera.rundir.identity import flatten

#: Columns of our own that each row has a mean of, and where run.json holds them.
FACTS = {
    "parameters": "parameters.total",
    "bytes_packed": "bytes.total.packed",
    "bytes_fp16": "bytes.total.fp16",
    "bytes_fp32": "bytes.total.fp32",
    "flops": "flops",
    "tokens_per_second": "tokens_per_second",
    "seconds": "wall_seconds",
}
#: How the override that chooses a scale begins.
SCALE = "scale="


@dataclass(frozen=True)
class Line:
    """One row of the table.

    Args:
        name, title: of the row.
        published: the paper's value of the table's metric.
        others: what else the paper prints of it, by column.
        cells: its runs, a seed each.
        ours: over the seeds that are done.
        difference: to the reference row; None for itself and where nothing can be compared.
        facts: means over the seeds that are done, by the names in FACTS.
    """

    name: str
    title: str
    published: Published | None
    others: dict[str, Published]
    cells: tuple[Cell, ...]
    ours: Spread | None
    difference: Difference | None
    facts: dict[str, float | None]

    @property
    def values(self) -> dict[int, float]:
        """Seed to value, of finished runs."""
        return _values(self.cells)

    @property
    def result(self) -> str:
        """Mean and spread, or the states of its runs; seeds that are not done are counted."""
        undone = Counter(cell.state for cell in self.cells if cell.state != "done")
        states = ", ".join(f"{n} {state}" for state, n in undone.items())
        if self.ours is None:
            return next(iter(undone)) if len(undone) == 1 else states
        text = digits.spread(self.ours)
        return f"{text} ({self.ours.n} of {len(self.cells)} seeds; {states})" if undone else text

    def measured(self, key: str) -> Spread | None:
        """Mean and spread of any number of its runs' records; None where no run has it."""
        return spread([v for cell in self.cells if (v := metric(cell.record, key)) is not None])


@dataclass(frozen=True)
class Pair:
    """Two rows, `first` the better one in the paper; `difference` is positive where ours agree."""

    first: Line
    second: Line
    difference: Difference

    @property
    def agrees(self) -> bool:
        return self.difference.mean > 0


@dataclass(frozen=True)
class Summary:
    """A table at one scale: its lines in the paper's order, and which pairs keep that order."""

    table: Table
    overrides: list[str]
    seeds: list[int]
    numerics: int
    lines: tuple[Line, ...]
    pairs: tuple[Pair, ...]

    @property
    def scale(self) -> str:
        chosen = [text.removeprefix(SCALE) for text in self.overrides if text.startswith(SCALE)]
        return chosen[-1] if chosen else "none"

    @property
    def cells(self) -> list[Cell]:
        return [cell for line in self.lines for cell in line.cells]

    @property
    def columns(self) -> list[str]:
        """What the paper prints besides the metric, in its order."""
        metric = self.table.metric
        return list(dict.fromkeys(p.column for p in self.table.published if p.column != metric))

    @cached_property
    def at_paper_scale(self) -> dict[str, dict[str, Any]]:
        """Flat configuration of each row at scale=paper; empty where an override fits no part."""
        configs: dict[str, dict[str, Any]] = {line.name: {} for line in self.lines}
        if "paper" in groups().get("scale", []):
            overrides = [text for text in self.overrides if not text.startswith(SCALE)]
            for job in jobs(self.table, [*overrides, f"{SCALE}paper"], self.seeds[:1]):
                with suppress(UserError):
                    configs[job.row] = flatten(plain(compose(job.overrides)))
        return configs


def summarise(
    table: Table | str, overrides: list[str], seeds: list[int], configs: Configs | None = None
) -> Summary:
    """The state of a table now.

    Args:
        table: itself or its name.
        overrides: of all its jobs, such as `scale=small`.
        seeds: of its runs.
        configs: of the runs that are composed already, by row and seed.

    Raises:
        UserError: no such table, or a row that does not compose.
    """
    if isinstance(table, str):
        table = load(table)
    by_row: dict[str, list[Cell]] = {row.name: [] for row in table.rows}
    found = cells(table, overrides, seeds, configs or {})
    for cell in found:
        by_row[cell.row].append(cell)
    reference = _values(by_row.get(table.reference, []))
    lines = tuple(_line(table, row, by_row[row.name], reference) for row in table.rows)
    pairs = _pairs(lines, table.better)
    return Summary(table, list(overrides), list(seeds), numerics(found), lines, pairs)


def _line(table: Table, row: Row, of: list[Cell], reference: dict[int, float]) -> Line:
    published = {p.column: p for p in table.published if p.row == row.name}
    values = _values(of)
    return Line(
        name=row.name,
        title=row.title,
        published=published.pop(table.metric, None),
        others=published,
        cells=tuple(of),
        ours=spread(list(values.values())),
        difference=None if row.name == table.reference else paired(values, reference),
        facts={name: _mean(of, key) for name, key in FACTS.items()},
    )


def _values(of: Sequence[Cell]) -> dict[int, float]:
    return {cell.seed: cell.value for cell in of if cell.value is not None}


def _mean(of: Sequence[Cell], key: str) -> float | None:
    over = spread([v for cell in of if (v := cell.fact(key)) is not None])
    return over.mean if over else None


def _pairs(lines: Sequence[Line], better: str) -> tuple[Pair, ...]:
    """Every two rows that the paper ranks and that have a finished seed in common."""
    sign = -1.0 if better == "lower" else 1.0
    pairs = []
    for a, b in combinations([line for line in lines if line.published], 2):
        assert a.published is not None
        assert b.published is not None
        gap = sign * (a.published.value - b.published.value)
        first, second = (a, b) if gap > 0 else (b, a)
        difference = paired(
            {seed: sign * value for seed, value in first.values.items()},
            {seed: sign * value for seed, value in second.values.items()},
        )
        if gap != 0 and difference is not None:
            pairs.append(Pair(first, second, difference))
    return tuple(pairs)
