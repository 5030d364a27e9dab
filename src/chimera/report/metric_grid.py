"""Show further metrics of a table's runs: grids with the published numbers in brackets, a picture.

`val/perplexity_4x` is measured at four times the training length, `cost/latency_ms@1024` at 1024
tokens, `rank/layer_3` in block 3 (SAIDL Figures 1, 2, 5 and 8, Table 16). The metrics of one such
quantity are a `Family`: each has a grid of its own and a panel in lengths.png. Other metrics that
both the paper and the runs have are the columns of one grid.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from chimera.report import formatting, style
from chimera.report.summary import Line, Summary

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_TIMES = re.compile(r"(.+)_(\d+)x")
_AT = re.compile(r"(.+)(?:@|(?<=/layer)_)(\d+)")
#: Families without a grid (accuracy differs little by length) and without a panel (that of
#: perplexity has the same information).
NOT_SHOWN = "accuracy"
NOT_DRAWN = "loss"
#: Titles of panels whose key is not clear enough.
NAMES = {"rank/layer": "entropy rank of a block's updates, mean"}


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
    body = [[c, *(_cell(line, c) for line in summary.lines)] for c in columns(summary)]
    return ["measured", *(line.name for line in summary.lines)], body


def grids(summary: Summary) -> list[tuple[str, list[str], list[list[str]]]]:
    """Title, head and cells of each family: measured values, published ones in brackets."""
    return [
        (
            f"{family.name}, by {family.unit}",
            ["row", *family.labels],
            [
                [line.name, *(_cell(line, key) for key in family.keys.values())]
                for line in summary.lines
            ],
        )
        for family in families(summary)
    ]


def _has(summary: Summary, key: str) -> bool:
    return any(line.measured(key) is not None for line in summary.lines)


def _cell(line: Line, key: str) -> str:
    value = line.measured(key)
    published = line.printed(key)
    text = "–" if value is None else formatting.spread(value)
    return f"{text} ({published:g})" if published is not None else text


def picture(summary: Summary) -> Figure | None:
    """Draw one panel per family and one line per row: filled markers measured, hollow published.

    None if there are no families.
    """
    drawn = [family for family in families(summary) if not family.name.endswith(NOT_DRAWN)]
    if not drawn:
        return None
    # The legend beside the panels takes width, and height if there are many rows.
    figure = style.empty(5.2 * len(drawn) + 1.8, max(4.6, 1.4 + 0.21 * len(summary.lines)))
    axes = figure.subplots(1, len(drawn), squeeze=False)[0]
    printed = [_panel(axis, family, summary) for axis, family in zip(axes, drawn, strict=True)]
    style.legend(figure, figure.axes[0])
    source = "; hollow: published" if any(printed) else ""
    figure.suptitle(style.escaped(f"{summary.table.title}{source}"), fontsize=10)
    return figure


def _panel(axis: Axes, family: Family, summary: Summary) -> bool:
    """Draw a family; return whether the paper prints any value of it."""
    has_published = False
    for number, line in enumerate(summary.lines):
        means = {n: m.mean for n, key in family.keys.items() if (m := line.measured(key))}
        _line(axis, means, number, style.escaped(line.name))
        printed = {n: v for n, key in family.keys.items() if (v := line.printed(key)) is not None}
        _line(axis, printed, number, None)
        has_published |= bool(printed)
    if family.unit != "block":
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
    axis.set_xticks(list(family.keys), family.labels)
    title = NAMES.get(family.name) or style.words(family.name)
    axis.set_title(style.escaped(title), fontsize=10)
    axis.set_xlabel(family.unit)
    style.tidy(axis)
    return has_published


def _line(axis: Axes, points: Mapping[int, float], number: int, label: str | None) -> None:
    """Draw the points; without a label they are published: thin and hollow."""
    look = style.line(number)
    if label is None:  # one printed length has no line at all
        look |= {"linestyle": ":", "linewidth": 1.0, "markerfacecolor": "white"}
    if points:
        axis.plot(list(points), list(points.values()), markersize=4, label=label, **look)
