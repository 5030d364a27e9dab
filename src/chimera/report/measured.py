"""Metrics of a table's runs besides the table's own, with the paper's numbers in brackets.

A metric `val/perplexity_4x` is that of four times the training length, `cost/latency_ms@1024` that
of 1024 tokens, `rank/layer_3` that of a block (SAIDL Figures 1, 2, 5 and 8, Table 16): of those
there is a grid for each quantity, and lengths.png. What else a paper prints and a run has under the
same name is one grid.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from chimera.report import digits
from chimera.report.summary import Line, Summary

_TIMES, _AT = re.compile(r"(.+)_(\d+)x"), re.compile(r"(.+)(?:@|(?<=/layer)_)(\d+)")
#: Accuracy says little by length, and its grids would be as many again.
NOT_SHOWN = ("accuracy",)


@dataclass(frozen=True)
class Family:
    """One quantity at several lengths or layers.

    Args:
        name: of the quantity, such as `val/perplexity`.
        keys: multiple of the training length, number of tokens or of the layer, to the metric.
    """

    name: str
    keys: dict[int, str]

    @property
    def multiples(self) -> bool:
        """Whether lengths are multiples of the training length: that of 1 has no suffix."""
        return self.name in self.keys.values()

    @property
    def unit(self) -> str:
        """What `keys` counts, unless multiples."""
        return "block" if self.name.endswith("/layer") else "tokens"

    @property
    def labels(self) -> list[str]:
        return [f"{n} ×" if self.multiples else str(n) for n in self.keys]


def families(summary: Summary) -> list[Family]:
    """The quantities that runs or the paper give by length or layer, and runs have."""
    keys = {key for cell in summary.cells for key in cell.record.get("metrics", {})}
    keys |= {p.column for p in summary.table.published}
    by_name: dict[str, dict[int, str]] = {}
    for key in sorted(keys):
        if match := _TIMES.fullmatch(key):
            by_name.setdefault(match[1], {1: match[1]})[int(match[2])] = key
        elif match := _AT.fullmatch(key):
            by_name.setdefault(match[1], {})[int(match[2])] = key
    return [
        Family(name, dict(sorted(of.items())))
        for name, of in by_name.items()
        if not name.endswith(NOT_SHOWN) and any(_has(summary, key) for key in of.values())
    ]


def columns(summary: Summary) -> list[str]:
    """What the paper prints of rows or the table adds, and runs have; families are apart."""
    in_family = {key for family in families(summary) for key in family.keys.values()}
    wanted = dict.fromkeys((*summary.columns, *summary.table.also))
    return [c for c in wanted if c not in in_family and _has(summary, c)]


def beside(summary: Summary) -> tuple[list[str], list[list[str]]]:
    """Head and cells of the columns: a line for each."""
    body = [[c, *(_cell(summary, line, c) for line in summary.lines)] for c in columns(summary)]
    return ["measured", *(line.name for line in summary.lines)], body


def grids(summary: Summary) -> list[tuple[str, list[str], list[list[str]]]]:
    """Title, head and cells of each family: ours, the paper's number in brackets behind it."""
    tables = []
    for family in families(summary):
        body = [
            [line.name, *(_cell(summary, line, key) for key in family.keys.values())]
            for line in summary.lines
        ]
        what = "multiples of the trained length" if family.multiples else family.unit
        tables.append((f"{family.name}, by {what}", ["row", *family.labels], body))
    return tables


def published(summary: Summary, line: Line, key: str) -> float | None:
    """The paper's number of a row; None if it prints none."""
    printed = (p.value for p in summary.table.published if (p.row, p.column) == (line.name, key))
    return next(printed, None)


def _has(summary: Summary, key: str) -> bool:
    return any(line.measured(key) is not None for line in summary.lines)


def _cell(summary: Summary, line: Line, key: str) -> str:
    ours, theirs = line.measured(key), published(summary, line, key)
    shown = "–" if ours is None else digits.spread(ours)
    return f"{shown} ({theirs:g})" if theirs is not None else shown
