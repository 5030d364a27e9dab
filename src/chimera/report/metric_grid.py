"""Show further metrics of a table's runs, with the published numbers in brackets.

`val/perplexity_4x` is measured at four times the training length, `cost/latency_ms@1024` at 1024
tokens, `rank/layer_3` in block 3 (SAIDL Figures 1, 2, 5 and 8, Table 16). The metrics of one such
quantity are a `Family`: each has a grid of its own and a panel in lengths.png. Other metrics that
both the paper and the runs have are the columns of one grid.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from chimera.report import formatting
from chimera.report.table_results import Line, TableResults

_TIMES = re.compile(r"(.+)_(\d+)x")
_AT = re.compile(r"(.+)(?:@|(?<=/layer)_)(\d+)")
#: Families without a grid: accuracy differs little by length.
NOT_SHOWN = "accuracy"


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
        """Unit of the numbers in `keys`."""
        if self.multiples:
            return "multiples of the trained length"
        return "block" if self.name.endswith("/layer") else "tokens"

    @property
    def labels(self) -> list[str]:
        return [f"{n} ×" if self.multiples else str(n) for n in self.keys]


def families(results: TableResults) -> list[Family]:
    """Quantities that runs have by length or layer, with the lengths of the runs and the paper."""
    keys = {key for cell in results.cells for key in cell.record.get("metrics", {})}
    keys |= {p.column for p in results.table.published}
    by_name: dict[str, dict[int, str]] = {}
    for key in sorted(keys):
        if match := _TIMES.fullmatch(key):
            by_name.setdefault(match[1], {1: match[1]})[int(match[2])] = key
        elif match := _AT.fullmatch(key):
            by_name.setdefault(match[1], {})[int(match[2])] = key
    return [
        Family(name, dict(sorted(metrics.items())))
        for name, metrics in by_name.items()
        if not name.endswith(NOT_SHOWN) and any(_has(results, key) for key in metrics.values())
    ]


def columns(results: TableResults) -> list[str]:
    """Metrics in no family that runs have and that the paper prints or the table's `also` names."""
    in_family = {key for family in families(results) for key in family.keys.values()}
    candidates = dict.fromkeys((*results.columns, *results.table.also))
    return [c for c in candidates if c not in in_family and _has(results, c)]


def columns_grid(results: TableResults) -> tuple[list[str], list[list[str]]]:
    """Head and cells of the grid of `columns`: a line per metric, a column per row."""
    body = [[c, *(_cell(line, c) for line in results.lines)] for c in columns(results)]
    return ["measured", *(line.name for line in results.lines)], body


def grids(results: TableResults) -> list[tuple[str, list[str], list[list[str]]]]:
    """Title, head and cells of each family: measured values, published ones in brackets."""
    return [
        (
            f"{family.name}, by {family.unit}",
            ["row", *family.labels],
            [
                [line.name, *(_cell(line, key) for key in family.keys.values())]
                for line in results.lines
            ],
        )
        for family in families(results)
    ]


def _has(results: TableResults, key: str) -> bool:
    return any(line.measured(key) is not None for line in results.lines)


def _cell(line: Line, key: str) -> str:
    value = line.measured(key)
    published = line.printed(key)
    text = "–" if value is None else formatting.spread(value)
    return f"{text} ({published:g})" if published is not None else text
