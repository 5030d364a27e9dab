"""What was measured besides a table's metric, the paper's numbers in brackets.

A metric `val/perplexity_4x` is that of four times the training length, `cost/latency_ms@1024` that
of 1024 tokens, `rank/layer_3` that of a block (SAIDL Figures 1, 2, 5 and 8, Table 16): of those
there is a grid for each quantity, and lengths.png. What else a paper prints and a run has under the
same name is one grid.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from chimera.report import digits
from chimera.report.cells import metric
from chimera.report.stats import spread

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from chimera.report.summary import Line, Summary

_TIMES, _AT = re.compile(r"(.+)_(\d+)x"), re.compile(r"(.+)(?:@|(?<=/layer)_)(\d+)")
#: In a grid but not in the figure, where perplexity says the same, or in neither.
NOT_DRAWN, NOT_SHOWN = ("loss",), ("accuracy",)
#: What a panel is called, where its key says too little.
NAMES = {"rank/layer": "entropy rank of a block's updates, mean"}


def families(summary: Summary) -> dict[str, dict[int, str]]:
    """Quantity to length, a multiple of the trained one or tokens, to the metric's key."""
    keys = {key for cell in summary.cells for key in cell.record.get("metrics", {})}
    keys |= {p.column for p in summary.table.published}
    found: dict[str, dict[int, str]] = {}
    for key in sorted(keys):
        if match := _TIMES.fullmatch(key):
            found.setdefault(match[1], {1: match[1]})[int(match[2])] = key
        elif match := _AT.fullmatch(key):
            found.setdefault(match[1], {})[int(match[2])] = key
    return {
        base: dict(sorted(by.items()))
        for base, by in found.items()
        if not base.endswith(NOT_SHOWN) and any(_has(summary, key) for key in by.values())
    }


def columns(summary: Summary) -> list[str]:
    """What the paper prints of rows or the table adds, and our runs have; lengths are apart."""
    by_length = {key for by in families(summary).values() for key in by.values()}
    wanted = dict.fromkeys((*summary.columns, *summary.table.also))
    return [c for c in wanted if c not in by_length and _has(summary, c)]


def beside(summary: Summary) -> tuple[list[str], list[list[str]]]:
    """Head and cells of these: a line for each."""
    body = [[c, *(_cell(summary, line, c) for line in summary.lines)] for c in columns(summary)]
    return ["measured", *(line.name for line in summary.lines)], body


def grids(summary: Summary) -> list[tuple[str, list[str], list[list[str]]]]:
    """Title, head and cells of each quantity: ours, the paper's number in brackets behind it."""
    tables = []
    for base, by in families(summary).items():
        times = base in by.values()
        head = ["row", *(f"{n} ×" if times else str(n) for n in by)]
        body = [
            [line.name, *(_cell(summary, line, key) for key in by.values())]
            for line in summary.lines
        ]
        what = "multiples of the trained length" if times else _unit(base)
        tables.append((f"{base}, by {what}", head, body))
    return tables


def figure(summary: Summary) -> Figure | None:
    """A panel a quantity, a line a row, solid for ours and dashed for the paper's; None if none."""
    from chimera.report.figures import _figure

    drawn = {b: by for b, by in families(summary).items() if not b.endswith(NOT_DRAWN)}
    if not drawn:
        return None
    made, dashed = _figure(5.2 * len(drawn), 4.6), False
    for axis, (base, by) in zip(
        made.subplots(1, len(drawn), squeeze=False)[0], drawn.items(), strict=True
    ):
        for i, line in enumerate(summary.lines):
            _line(axis, {n: _mean(line, key) for n, key in by.items()}, i, line.name)
            theirs = {n: _published(summary, line, key) for n, key in by.items()}
            dashed |= _line(axis, theirs, i, None)
        if _unit(base) == "tokens":
            axis.set_xscale("log", base=2)
            axis.set_yscale("log")
        axis.set_xticks(list(by), [f"{n} ×" if base in by.values() else str(n) for n in by])
        axis.set_title(NAMES.get(base, base), fontsize=10)
        axis.set_xlabel("trained lengths" if base in by.values() else _unit(base), fontsize=9)
        axis.grid(alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
    made.axes[0].legend(frameon=False, fontsize=8)
    source = f"; dashed: {summary.table.source}" if dashed else ""
    made.suptitle(f"{summary.table.title}{source}", fontsize=10)
    return made


def _unit(base: str) -> str:
    return "block" if base.endswith("/layer") else "tokens"


def _line(axis: Any, points: dict[int, float | None], number: int, label: str | None) -> bool:
    """Draw what is there, and say whether anything is."""
    kept = [(n, value) for n, value in points.items() if value]
    if kept:
        style = "-o" if label else "--"
        axis.plot(*zip(*kept, strict=True), style, color=f"C{number % 10}", ms=3, label=label)
    return bool(kept)


def _mean(line: Line, key: str) -> float | None:
    found = spread([v for c in line.cells if (v := metric(c.record, key)) is not None])
    return None if found is None else found.mean


def _published(summary: Summary, line: Line, key: str) -> float | None:
    printed = (p.value for p in summary.table.published if (p.row, p.column) == (line.name, key))
    return next(printed, None)


def _has(summary: Summary, key: str) -> bool:
    return any(_mean(line, key) is not None for line in summary.lines)


def _cell(summary: Summary, line: Line, key: str) -> str:
    ours = spread([v for c in line.cells if (v := metric(c.record, key)) is not None])
    theirs = _published(summary, line, key)
    shown = "–" if ours is None else digits.spread(ours)
    return f"{shown} ({theirs:g})" if theirs is not None else shown
