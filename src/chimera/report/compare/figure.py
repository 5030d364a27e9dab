"""Draw the losses of groups of runs against steps, tokens, seconds and FLOPs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from chimera.report import digits
from chimera.report.compare.collect import Run
from chimera.report.compare.groups import Comparison, Group
from chimera.report.escape import figure as escaped

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Groups that are drawn; more lines cannot be told apart.
MOST = 12
#: Okabe and Ito's colours, which the colour-blind tell apart, and styles that survive grey print.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
STYLES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1.2, 1.2)), (0, (6, 1.5, 1.2, 1.5)))
#: Points on which curves of several seeds are averaged.
GRID = 120


class Axis(NamedTuple):
    """A horizontal axis: its name in the page, its label."""

    name: str
    label: str


AXES = (
    Axis("steps", "optimiser steps"),
    Axis("tokens", "training tokens"),
    Axis("seconds", "seconds of training"),
    Axis("FLOPs", "FLOPs of matrix products"),
)


def curve_of(run: Run, axis: str) -> list[tuple[float, float]]:
    """(x, loss) of a run; empty if its tokens or FLOPs are not known.

    Args:
        run: with a step log.
        axis: name of one of `AXES`.
    """
    if axis == "seconds":
        return [(seconds, loss) for _, loss, seconds in run.curve]
    factor = {"steps": 1.0, "tokens": run.tokens, "FLOPs": run.tokens and run.flops}[axis]
    if axis == "FLOPs" and run.tokens and run.flops:
        factor = run.tokens * run.flops
    points = [(step * factor, loss) for step, loss, _ in run.curve] if factor else []
    return [point for point in points if math.isfinite(point[0])]


def band(group: Group, axis: str) -> tuple[Any, Any, Any, Any] | None:
    """x, mean, least and largest loss [n] over a group's runs, as far as all of them go."""
    curves = [np.array(curve) for run in group.runs if (curve := curve_of(run, axis))]
    if not curves:
        return None
    if len(curves) == 1:
        x, loss = curves[0].T
        return x, loss, loss, loss
    first, last = max(c[0, 0] for c in curves), min(c[-1, 0] for c in curves)
    if last <= first:
        x, loss = max(curves, key=len).T
        return x, loss, loss, loss
    x = np.linspace(first, last, GRID)
    losses = np.stack([np.interp(x, c[:, 0], c[:, 1]) for c in curves])
    return x, losses.mean(0), losses.min(0), losses.max(0)


def overlay(comparison: Comparison) -> Figure:
    """Four panels with a line per group, the best ones; a shade spans its seeds."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # slow to import
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter

    groups = drawn(comparison.groups)
    figure = Figure(figsize=(11, 7.2 + 0.22 * len(groups)), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(2, 2, sharey=True).flat
    handles: dict[str, Any] = {}
    for panel, axis in zip(panels, AXES, strict=True):
        for number, group in enumerate(groups):
            found = band(group, axis.name)
            if found is None:
                continue
            x, mean, low, high = found
            colour, style = COLOURS[number % len(COLOURS)], STYLES[number % len(STYLES)]
            (line,) = panel.plot(x, mean, color=colour, linestyle=style, linewidth=1.6)
            panel.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)
            handles[label(group)] = line
        panel.set_xlabel(axis.label)
        if axis.name != "seconds":  # a thousandth of a second would be called 1m
            panel.xaxis.set_major_formatter(EngFormatter(sep=""))
        panel.grid(alpha=0.3)
        panel.spines[["top", "right"]].set_visible(False)
        if not panel.lines:
            panel.text(0.5, 0.5, "not known", ha="center", transform=panel.transAxes)
        elif low_enough := _limit(panel):
            panel.set_ylim(top=low_enough)
    for panel in figure.axes[::2]:
        panel.set_ylabel("training loss (nats)")
    rest = len(comparison.groups) - len(groups)
    more = f"; {rest} more in the page" if rest else ""
    title = (
        f"Training loss, best first by {comparison.metric} ({comparison.better} is better){more}"
    )
    figure.suptitle(escaped(title), fontsize=11)
    if handles:
        figure.legend(
            handles.values(),
            map(escaped, handles),
            loc="outside lower left",
            frameon=False,
            fontsize=9,
            handlelength=4,
        )
    return figure


def drawn(groups: Sequence[Group]) -> list[Group]:
    """The groups that are drawn: the first ones of those with a step log."""
    with_log = (group for group in groups if any(run.curve for run in group.runs))
    return list(islice(with_log, MOST))


def label(group: Group) -> str:
    """Legend of a group: what tells it from the others, its result, its seeds."""
    end = f": {digits.spread(group.result)}" if group.result else ""
    name = group.label if len(group.label) <= 100 else f"{group.label[:99]}…"
    return f"{name}{end} ({group.states} run{'s' * (group.states != '1')})"


def _limit(panel: Any) -> float | None:
    """Upper end of the losses without the first steps, which would flatten everything else."""
    tops = []
    for line in panel.lines:
        losses = np.asarray(line.get_ydata(), dtype=float)
        tops.append(losses[len(losses) // 40 :].max())
    ends = [float(np.asarray(line.get_ydata(), dtype=float).min()) for line in panel.lines]
    top = float(max(tops))
    return top + 0.03 * (top - min(ends)) if top > min(ends) else None
