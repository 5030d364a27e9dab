"""A table as numbers: everything that the report's files show, computed once."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

from chimera.config.tables import Published, Table, load
from chimera.report.cells import Cell, cells
from chimera.report.stats import Difference, Spread, paired, spread

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
        """Seed to value, of what is done."""
        return {c.seed: c.value for c in self.cells if c.value is not None}


@dataclass(frozen=True)
class Pair:
    """Two rows, the first better in the paper; `difference` is ours, positive where it is, too."""

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
    words: list[str]
    seeds: list[int]
    lines: tuple[Line, ...]
    pairs: tuple[Pair, ...]

    @property
    def scale(self) -> str:
        chosen = [word.partition("=")[2] for word in self.words if word.startswith("scale=")]
        return chosen[-1] if chosen else "none"

    @property
    def cells(self) -> list[Cell]:
        return [cell for line in self.lines for cell in line.cells]

    @property
    def columns(self) -> list[str]:
        """What the paper prints besides the metric, in its order."""
        metric = self.table.metric
        return list(dict.fromkeys(p.column for p in self.table.published if p.column != metric))


def summarise(table: Table | str, words: list[str], seeds: list[int]) -> Summary:
    """The state of a table now.

    Args:
        table: itself or its name.
        words: overrides that all its jobs have, such as `scale=small`.
        seeds: of its runs.
    """
    if isinstance(table, str):
        table = load(table)
    by_row: dict[str, list[Cell]] = {row.name: [] for row in table.rows}
    for cell in cells(table, words, seeds):
        by_row[cell.row].append(cell)
    reference = _values(by_row.get(table.reference, []))
    lines = []
    for row in table.rows:
        of_row = {p.column: p for p in table.published if p.row == row.name}
        values = _values(by_row[row.name])
        lines.append(
            Line(
                name=row.name,
                title=row.title,
                published=of_row.pop(table.metric, None),
                others=of_row,
                cells=tuple(by_row[row.name]),
                ours=spread(list(values.values())),
                difference=None if row.name == table.reference else paired(values, reference),
                facts={name: _mean(by_row[row.name], key) for name, key in FACTS.items()},
            )
        )
    return Summary(table, list(words), list(seeds), tuple(lines), _pairs(lines, table.better))


def _values(of: list[Cell]) -> dict[int, float]:
    return {cell.seed: cell.value for cell in of if cell.value is not None}


def _mean(of: list[Cell], key: str) -> float | None:
    found = spread([v for cell in of if (v := cell.fact(key)) is not None])
    return found.mean if found else None


def _pairs(lines: list[Line], better: str) -> tuple[Pair, ...]:
    """Every two rows that the paper ranks and of which we have a seed in common."""
    sign = -1.0 if better == "lower" else 1.0
    pairs = []
    for a, b in combinations([line for line in lines if line.published], 2):
        assert a.published is not None
        assert b.published is not None
        gap = sign * (a.published.value - b.published.value)
        first, second = (a, b) if gap > 0 else (b, a)
        found = paired(
            {seed: sign * value for seed, value in first.values.items()},
            {seed: sign * value for seed, value in second.values.items()},
        )
        if gap != 0 and found is not None:
            pairs.append(Pair(first, second, found))
    return tuple(pairs)
