"""Draw report.png: published and measured values, one line per row."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from chimera.report import formatting, style
from chimera.report.baselines import baselines
from chimera.report.style import empty, escaped
from chimera.report.summary import Line, Summary

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAPER = "0.45"
OURS = "C0"
#: Characters of a row's name on one line; longer ones would leave the values no room.
NAME = 41
#: Height of a row, and of each further line of its name, in inches.
ROW = 0.42
FURTHER = 0.16


def bars(summary: Summary) -> Figure:
    """Draw published values on the left and measured ones on the right, one line per row.

    Each side has its own axis, because the values at a small scale differ in size from the paper's;
    comparable are the order of the rows and their distances.
    """
    lines = summary.lines
    titles = [textwrap.fill(line.title, NAME) for line in lines]
    tallest = max((title.count("\n") for title in titles), default=0)
    figure = empty(9.5, 1.5 + (ROW + FURTHER * max(0, tallest - 1)) * len(lines))
    published = any(line.published for line in lines)
    axes = figure.subplots(1, 2 if published else 1, sharey=True, squeeze=False)[0]
    if published:
        _published(axes[0], lines)
        axes[0].set_title("published", fontsize=10)
    _measured(axes[-1], lines)
    names = _baselines(axes[-1], summary)
    axes[-1].set_title(escaped(style.with_scale("ours", summary.scale)), fontsize=10)
    axes[0].set_yticks(range(len(lines)), [escaped(title) for title in titles])
    axes[0].set_ylim(len(lines) - 0.5 + names, -0.5)  # a line of names below the rows
    metric = f"{style.words(summary.table.metric)}\n({summary.table.better} is better)"
    for axis in axes:
        axis.set_xlabel(escaped(metric), fontsize=9)
        style.tidy(axis)
        axis.grid(visible=False, axis="y")
        axis.margins(x=0.28)
        if axis.dataLim.x0 > 0 > axis.get_xlim()[0]:  # the margin is no value
            axis.set_xlim(left=0)
    figure.suptitle(escaped(summary.table.title), fontsize=11)
    return figure


def _published(axis: Any, lines: Sequence[Line]) -> None:
    for y, line in enumerate(lines):
        if line.published:
            axis.plot(line.published.value, y, "D", color=PAPER, markersize=6)
            _note(axis, line.published.value, y, f"{line.published.value:g}")


def _measured(axis: Any, lines: Sequence[Line]) -> None:
    for y, line in enumerate(lines):
        if line.ours is None:
            inside = axis.get_yaxis_transform()
            axis.text(0.03, y, line.result, color="C3", va="center", fontsize=9, transform=inside)
            continue
        values = list(line.values.values())
        axis.plot(values, [y] * len(values), "|", color=OURS, alpha=0.6, markersize=9)
        axis.errorbar(line.ours.mean, y, xerr=line.ours.std or None, fmt="o", color=OURS, capsize=3)
        right = max(line.ours.mean + (line.ours.std or 0.0), *line.values.values())
        part = "" if line.ours.n == len(line.cells) else f" ({line.ours.n} of {len(line.cells)})"
        _note(axis, right, y, formatting.spread(line.ours) + part)


def _baselines(axis: Any, summary: Summary) -> int:
    """Dotted lines at trivial predictors, an arrow to one far from the rows; 1 if there are any."""
    low, high = axis.get_xlim()
    look = {"color": "0.4", "va": "bottom", "fontsize": 8}
    found = baselines(summary)
    beyond: dict[str, list[str]] = {"left": [], "right": []}
    for baseline in found:
        value = baseline.value.mean
        if low - (high - low) <= value <= high + (high - low):
            axis.axvline(value, color="0.5", linestyle=":", linewidth=1.0, zorder=0)
            bottom = axis.get_xaxis_transform()
            axis.text(value, 0.02, baseline.name, transform=bottom, rotation=90, ha="right", **look)
        else:
            beyond["left" if value < low else "right"].append(f"{baseline.name} {value:.4g}")
    for side, names in beyond.items():
        arrow = "← {}" if side == "left" else "{} →"
        if names:
            at = (0.01, 0.02) if side == "left" else (0.99, 0.02)
            said = arrow.format(", ".join(names))
            axis.text(*at, escaped(said), transform=axis.transAxes, ha=side, **look)
    return int(bool(found))


def _note(axis: Any, x: float, y: int, text: str) -> None:
    look = {"va": "center", "fontsize": 9, "textcoords": "offset points"}
    # White behind the digits, so that no baseline's line runs through them.
    axis.annotate(text, (x, y), (7, 0), bbox={"fc": "white", "ec": "none", "pad": 0.5}, **look)
