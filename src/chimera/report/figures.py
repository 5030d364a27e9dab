"""Draw curves.png (loss) and lengths.png (metrics by length or layer)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chimera.config import signatures
from chimera.report import digits, measured, style
from chimera.report.measured import Family
from chimera.report.style import empty, escaped
from chimera.report.summary import Line, Summary
from chimera.rundir.steps import column, smooth, validated

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Families without a panel: their panel of perplexity has the same information.
NOT_DRAWN = ("loss",)
#: Titles of panels whose key is not clear enough.
NAMES = {"rank/layer": "entropy rank of a block's updates, mean"}


def curves(summary: Summary) -> Figure:
    """Draw each row's smoothed training loss as a line and its validation losses as points.

    Both are means over the row's seeds; the band is from the lowest to the highest seed. The legend
    has the table's metric at the end of training. If it is the perplexity of a validation, the
    right axis has its values. A panel below has the score by which a task chooses its best
    checkpoint, if it is not the loss.
    """
    lines = summary.trained
    scores = {n: found for n, line in enumerate(lines) if (found := _scores(line))}
    figure = empty(10, 5.6 + 0.11 * len(lines) + 2.2 * bool(scores))
    axis, *below = figure.subplots(1 + bool(scores), sharex=True, squeeze=False)[:, 0]
    drawn = [_curve(axis, number, line) for number, line in enumerate(lines)]
    axis.set_title(escaped(style.with_scale(summary.table.title, summary.scale)), fontsize=11)
    for other in below:
        _draw_scores(other, scores, summary)
    (below or [axis])[-1].set_xlabel("optimiser steps")
    axis.set_ylabel(f"loss ({_unit(summary)})\nlines: training, points: validation")
    style.tidy(axis)
    if any(drawn):
        final = f"{style.words(summary.table.metric)} at the end, mean ± standard deviation"
        style.legend(figure, axis, escaped(final))
        _clip(axis, drawn)
    else:
        axis.text(0.5, 0.5, "no run has taken a step", ha="center", transform=axis.transAxes)
    if any(drawn) and summary.table.metric == "val/perplexity":
        _perplexity(axis)
    return figure


def lengths(summary: Summary) -> Figure | None:
    """Draw one panel per family and one line per row: filled markers measured, hollow published.

    None if there are no families.
    """
    families = [f for f in measured.families(summary) if not f.name.endswith(NOT_DRAWN)]
    if not families:
        return None
    # The legend beside the panels takes width, and height if there are many rows.
    rows = len(summary.lines)
    figure, printed = empty(5.2 * len(families) + 1.8, max(4.6, 1.4 + 0.21 * rows)), False
    axes = figure.subplots(1, len(families), squeeze=False)[0]
    for axis, family in zip(axes, families, strict=True):
        printed |= _panel(axis, family, summary)
    style.legend(figure, figure.axes[0])
    source = "; hollow: published" if printed else ""
    figure.suptitle(escaped(f"{summary.table.title}{source}"), fontsize=10)
    return figure


def _curve(axis: Any, number: int, line: Line) -> list[float]:
    """Draw the losses of a row's runs; return their smoothed mean, empty if none took a step."""
    # The mean ends at the shortest log: an unfinished run would shorten it.
    cells = [cell for cell in line.cells if cell.state == "done"] or line.cells
    logs = [log for cell in cells if (log := losses_of(cell.directory / "steps.csv"))[0]]
    if not logs:
        return []
    steps, losses = together(logs)
    smoothed = [smooth(log) for log in losses]
    mean = [sum(step) / len(logs) for step in zip(*smoothed, strict=True)]
    look = style.line(number)
    marker, colour = look.pop("marker"), look["color"]
    axis.plot(*style.thinned(mean, steps), linewidth=1.5, **look)
    if len(logs) > 1:
        x, low = style.thinned([min(step) for step in zip(*smoothed, strict=True)], steps)
        _, high = style.thinned([max(step) for step in zip(*smoothed, strict=True)], steps)
        axis.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)
    points = _validations(line)
    if points:
        size = 5 if len(points) <= 25 else 3
        # A white rim keeps a marker apart from its own line.
        rim = {"markersize": size, "markeredgecolor": "white", "markeredgewidth": 0.6}
        axis.plot(*zip(*points, strict=True), marker, color=colour, **rim)
    label = escaped(_label(line, len(logs)))
    axis.plot([], [], marker=marker if points else "", label=label, **look)
    return mean


def _clip(axis: Any, drawn: Sequence[list[float]]) -> None:
    """End the axis above the losses that follow the first tenth of the steps.

    The first losses fall from that of chance, ln V: they would take most of the height.
    """
    later = [mean[max(1, len(mean) // 10) :] or mean for mean in drawn if mean]
    top = max((loss for mean in later for loss in mean if math.isfinite(loss)), default=math.inf)
    low, high = axis.get_ylim()
    if top < high:
        axis.set_ylim(low, top + 0.03 * (top - low))


def _perplexity(axis: Any) -> None:
    """A second axis, exp(loss), on the right."""
    import numpy as np
    from matplotlib.ticker import LogLocator, ScalarFormatter

    functions = (lambda x: np.exp(np.minimum(x, 700.0)), lambda x: np.log(np.maximum(x, 1e-9)))
    other = axis.secondary_yaxis("right", functions=functions)
    other.set_ylabel("perplexity")
    other.yaxis.set_major_locator(LogLocator(10, subs=(1.0, 1.5, 2.0, 3.0, 5.0, 7.0)))
    other.yaxis.set_major_formatter(ScalarFormatter())
    other.minorticks_off()


def _unit(summary: Summary) -> str:
    """Unit of the rows' losses: nats per masked token, say."""
    tasks = {str(cell.config["task"]["_target_"]) for cell in summary.cells if cell.config}
    units = {signatures.attribute(target, "predicts", "prediction") for target in tasks}
    return f"nats per {units.pop()}" if len(units) == 1 else "nats"


def _label(line: Line, seeds: int) -> str:
    end = f": {digits.spread(line.ours)}" if line.ours else ""
    return f"{line.title} ({digits.seeds(seeds)}){end}"


def losses_of(log: Path) -> tuple[list[float], list[float]]:
    """Steps and losses of a step log; that of the run store has a row for several steps."""
    if not log.exists():
        return [], []
    rows = zip(column(log, "global_step"), column(log, "loss"), strict=True)
    numbers = [(float(step), float(loss)) for step, loss in rows if loss]
    return [step for step, _ in numbers], [loss for _, loss in numbers]


def together(
    logs: Sequence[tuple[list[float], list[float]]],
) -> tuple[list[float], list[list[float]]]:
    """The logs at common steps: those of the coarsest log, as far as all of them go."""
    import numpy as np

    last = min(steps[-1] for steps, _ in logs)
    coarsest = min(logs, key=lambda log: len(log[0]))[0]
    common = [step for step in coarsest if step <= last] or [last]
    return common, [
        losses[: len(common)]
        if steps[: len(common)] == common
        else np.interp(common, steps, losses).tolist()
        for steps, losses in logs
    ]


def _validations(line: Line) -> list[tuple[float, float]]:
    """(step, mean validation loss) at every step at which a finished seed was validated."""
    logs = [dict(found) for cell in line.cells if (found := validated(cell.record))]
    points: list[tuple[float, float]] = []
    for step in sorted({step for log in logs for step in log}):
        losses = [log[step] for log in logs if step in log]
        points.append((step, sum(losses) / len(losses)))
    return points


def _scores(line: Line) -> list[tuple[float, float]]:
    """(step, mean score) at every validation of a finished seed; empty for a task without one."""
    by_step: dict[float, list[float]] = {}
    for cell in line.cells:
        for epoch in cell.record.get("epochs", {}).values():
            if (score := epoch.get("score")) is not None and score != epoch.get("loss"):
                by_step.setdefault(epoch["step"], []).append(score)
    return [(step, sum(of) / len(of)) for step, of in sorted(by_step.items())]


def _draw_scores(
    axis: Any, scores: Mapping[int, Sequence[tuple[float, float]]], summary: Summary
) -> None:
    for number, points in scores.items():
        axis.plot(*zip(*points, strict=True), markersize=4, **style.line(number))
    tasks = {str(cell.config["task"]["_target_"]) for cell in summary.cells if cell.config}
    names = {signatures.attribute(target, "monitor", "val/score") for target in tasks}
    axis.set_ylabel(style.words(names.pop()) if len(names) == 1 else "score")
    style.tidy(axis)


def _panel(axis: Any, family: Family, summary: Summary) -> bool:
    """Draw a family; return whether the paper prints any value of it."""
    has_published = False
    for number, line in enumerate(summary.lines):
        means = {n: v.mean for n, key in family.keys.items() if (v := line.measured(key))}
        _line(axis, means, number, escaped(line.name))
        printed = {n: measured.published(summary, line, key) for n, key in family.keys.items()}
        has_published |= _line(axis, printed, number, None)
    if family.unit == "tokens":
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
    axis.set_xticks(list(family.keys), family.labels)
    axis.set_title(escaped(NAMES.get(family.name) or style.words(family.name)), fontsize=10)
    axis.set_xlabel("multiples of the trained length" if family.multiples else family.unit)
    style.tidy(axis)
    return has_published


def _line(axis: Any, points: Mapping[int, float | None], number: int, label: str | None) -> bool:
    """Draw the points that have a value; return whether there is one."""
    drawn = [(n, value) for n, value in points.items() if value is not None]
    if drawn:
        look = style.line(number)
        if label is None:  # published: thin and hollow; one printed length has no line at all
            look |= {"linestyle": ":", "linewidth": 1.0, "markerfacecolor": "white"}
        axis.plot(*zip(*drawn, strict=True), markersize=4, label=label, **look)
    return bool(drawn)
