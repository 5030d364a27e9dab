"""Grids of further metrics of a table's runs, with the published numbers in brackets.

`val/perplexity_4x` is measured at four times the training length, `cost/latency_ms@1024` at 1024
tokens, `rank/layer_3` in block 3 (SAIDL Figures 1, 2, 5 and 8, Table 16). The metrics of one such
quantity are a `Family`: each has a grid of its own and a panel in lengths.png. Other metrics that
both the paper and the runs have are the columns of one grid.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from chimera.report import digits
from chimera.report.summary import Line, Summary

_TIMES, _AT = re.compile(r"(.+)_(\d+)x"), re.compile(r"(.+)(?:@|(?<=/layer)_)(\d+)")
#: Families without a grid: accuracy differs little by length, and would double the grids.
NOT_SHOWN = ("accuracy",)


@dataclass(frozen=True)
class Family:
    """One quantity at several lengths or layers.

    Args:
        name: name of the quantity, such as `val/perplexity`.
        keys: metrics by multiple of the training length, by number of tokens or by layer.
    """

    name: str
    keys: dict[int, str]

    @property
    def multiples(self) -> bool:
        """Whether lengths are multiples of the training length; the key at 1 has no suffix."""
        return self.name in self.keys.values()

    @property
    def unit(self) -> str:
        """Unit of the numbers in `keys`, unless they are multiples."""
        return "block" if self.name.endswith("/layer") else "tokens"

    @property
    def labels(self) -> list[str]:
        return [f"{n} ×" if self.multiples else str(n) for n in self.keys]


def families(summary: Summary) -> list[Family]:
    """Quantities that runs have by length or layer, with the lengths of the runs and the paper."""
    keys = {key for cell in summary.cells for key in cell.record.get("metrics", {})}
    keys |= {p.column for p in summary.table.published}
    by_name: dict[str, dict[int, str]] = {}
    for key in sorted(keys):
        if match := _TIMES.fullmatch(key):
            by_name.setdefault(match[1], {1: match[1]})[int(match[2])] = key
        elif match := _AT.fullmatch(key):
            by_name.setdefault(match[1], {})[int(match[2])] = key
    return [
        Family(name, dict(sorted(metrics.items())))
        for name, metrics in by_name.items()
        if not name.endswith(NOT_SHOWN) and any(_has(summary, key) for key in metrics.values())
    ]


def columns(summary: Summary) -> list[str]:
    """Metrics in no family that runs have and that the paper prints or the table's `also` names."""
    in_family = {key for family in families(summary) for key in family.keys.values()}
    candidates = dict.fromkeys((*summary.columns, *summary.table.also))
    return [c for c in candidates if c not in in_family and _has(summary, c)]


def columns_grid(summary: Summary) -> tuple[list[str], list[list[str]]]:
    """Head and cells of the grid of `columns`: a line per metric, a column per row."""
    body = [[c, *(_cell(summary, line, c) for line in summary.lines)] for c in columns(summary)]
    return ["measured", *(line.name for line in summary.lines)], body


def grids(summary: Summary) -> list[tuple[str, list[str], list[list[str]]]]:
    """Title, head and cells of each family: measured values, published ones in brackets."""
    tables = []
    for family in families(summary):
        body = [
            [line.name, *(_cell(summary, line, key) for key in family.keys.values())]
            for line in summary.lines
        ]
        unit = "multiples of the trained length" if family.multiples else family.unit
        tables.append((f"{family.name}, by {unit}", ["row", *family.labels], body))
    return tables


def published(summary: Summary, line: Line, key: str) -> float | None:
    """The published value of a row and a column; None if the paper prints none."""
    values = (p.value for p in summary.table.published if (p.row, p.column) == (line.name, key))
    return next(values, None)


def _has(summary: Summary, key: str) -> bool:
    return any(line.measured(key) is not None for line in summary.lines)


def _cell(summary: Summary, line: Line, key: str) -> str:
    value, published_value = line.measured(key), published(summary, line, key)
    text = "–" if value is None else digits.spread(value)
    return f"{text} ({published_value:g})" if published_value is not None else text
