"""Draw a table: report.png (values), curves.png, budget.png (losses), times.png, lengths.png.

The steps of a run cost the same, so both axes of budget.png are its steps times what a step costs:
matrix products of the training step by the model's count, and the time of a step without
validations.
"""

from __future__ import annotations

import math
import textwrap
from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from chimera.config import schema
from chimera.report import formatting, style
from chimera.report.comparison import tokens_per_step
from chimera.report.metric_grid import Family, families
from chimera.report.style import empty, escaped
from chimera.report.table_results import FACTS, Cell, Line, TableResults, metric
from chimera.rundir.steps import smooth, validated

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PAPER = "0.45"
OURS = "C0"
#: Characters of a row's name on one line; longer ones would leave the values no room.
NAME = 41
#: Height of a row, and of each further line of its name, in inches.
ROW = 0.42
FURTHER = 0.16
#: Titles of the panels of budget.png.
FLOPS = "training FLOPs (matrix products)"
SECONDS = "seconds of training steps"
#: Number in a run's record that is its training time.
WALL = FACTS["seconds"]
#: Most points of a drawn line, and most lines of a picture.
POINTS = 1500
MOST = 12
#: Steps and losses of a run.
Log = tuple[list[float], list[float]]
#: Families of metrics without a panel: that of perplexity has the same information.
NOT_DRAWN = "loss"
#: Titles of panels whose key is not clear enough.
NAMES = {"rank/layer": "entropy rank of a block's updates, mean"}


def bars(results: TableResults) -> Figure:
    """Draw published values on the left and measured ones on the right, one line per row.

    Each side has its own axis, because the values at a small scale differ in size from the paper's;
    comparable are the order of the rows and their distances. The best row is at the top.
    """
    lines = ranked(results, results.lines)
    titles = [textwrap.fill(line.title, NAME) for line in lines]
    tallest = max((title.count("\n") for title in titles), default=0)
    figure = empty(9.5, 1.5 + (ROW + FURTHER * max(0, tallest - 1)) * len(lines))
    published = any(line.published for line in lines)
    axes = figure.subplots(1, 2 if published else 1, sharey=True, squeeze=False)[0]
    if published:
        _published(axes[0], lines)
        axes[0].set_title("published", fontsize=10)
    _measured(axes[-1], lines)
    names = _baselines(axes[-1], results)
    axes[-1].set_title(escaped(style.with_scale("ours", results.scale)), fontsize=10)
    axes[0].set_yticks(range(len(lines)), [escaped(title) for title in titles])
    axes[0].set_ylim(len(lines) - 0.5 + names, -0.5)  # a line of names below the rows
    metric = f"{style.words(results.table.metric)}\n({results.table.better} is better)"
    for axis in axes:
        axis.set_xlabel(escaped(metric), fontsize=9)
        style.tidy(axis)
        axis.grid(visible=False, axis="y")
        axis.margins(x=0.28)
        if axis.dataLim.x0 > 0 > axis.get_xlim()[0]:  # the margin is no value
            axis.set_xlim(left=0)
    figure.suptitle(escaped(results.table.title), fontsize=11)
    return figure


def ranked(results: TableResults, lines: Sequence[Line]) -> list[Line]:
    """The rows, best first; those without a value last."""
    sign = -1.0 if results.table.better == "higher" else 1.0
    return sorted(lines, key=lambda line: sign * line.ours.mean if line.ours else math.inf)


def _title(results: TableResults, lines: Sequence[Line]) -> str:
    """Title of a picture of the best of these rows."""
    some = f"; the best {MOST} of {len(lines)} rows" if len(lines) > MOST else ""
    return escaped(style.with_scale(results.table.title, results.scale) + some)


def close(values: Sequence[float]) -> tuple[float, float]:
    """The ends of an axis without the few values that would squeeze the others, if there are any.

    They are at most a third of the values, on one side, and take over seven eighths of the width.
    """
    found = sorted(values)
    for few in range(1, len(found) // 3 + 1):
        for part in (found[:-few], found[few:]):
            if 0 < 8 * (part[-1] - part[0]) < found[-1] - found[0]:
                return part[0], part[-1]
    return (found[0], found[-1]) if found else (0.0, 0.0)


def _beyond(axis: Any, x: float, y: int, ends: tuple[float, float], text: str) -> bool:
    """Write a value that is off the axis at its edge, with an arrow; returns whether it is off."""
    if ends[0] <= x <= ends[1]:
        return False
    right = x > ends[1]
    look = {"va": "center", "ha": "right" if right else "left", "fontsize": 9}
    place = axis.get_yaxis_transform()
    axis.text(float(right), y, f"{text} →" if right else f"← {text}", transform=place, **look)
    return True


def _published(axis: Any, lines: Sequence[Line]) -> None:
    ends = close([line.published.value for line in lines if line.published])
    for y, line in enumerate(lines):
        if line.published:
            value = line.published.value
            if not _beyond(axis, value, y, ends, f"{value:g}"):
                axis.plot(value, y, "D", color=PAPER, markersize=6)
                _note(axis, value, y, f"{value:g}")


def _measured(axis: Any, lines: Sequence[Line]) -> None:
    ends = close([line.ours.mean for line in lines if line.ours])
    for y, line in enumerate(lines):
        if line.ours is None:
            inside = axis.get_yaxis_transform()
            axis.text(0.03, y, line.result, color="C3", va="center", fontsize=9, transform=inside)
            continue
        part = "" if line.ours.n == len(line.cells) else f" ({line.ours.n} of {len(line.cells)})"
        said = formatting.spread(line.ours) + part
        if _beyond(axis, line.ours.mean, y, ends, said):
            continue
        values = list(line.values.values())
        axis.plot(values, [y] * len(values), "|", color=OURS, alpha=0.6, markersize=9)
        axis.errorbar(line.ours.mean, y, xerr=line.ours.std or None, fmt="o", color=OURS, capsize=3)
        right = max(line.ours.mean + (line.ours.std or 0.0), *line.values.values())
        _note(axis, right, y, said)


def _baselines(axis: Any, results: TableResults) -> int:
    """Dotted lines at trivial predictors, an arrow to one far from the rows; 1 if there are any."""
    low, high = axis.get_xlim()
    look = {"color": "0.4", "va": "bottom", "fontsize": 8}
    found = results.baselines
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


def curves(results: TableResults) -> Figure:
    """Draw each row's smoothed training loss as a line and its validation losses as points.

    Both are means over the row's seeds; the band is from the lowest to the highest seed. The legend
    has the table's metric at the end of training. If it is the perplexity of a validation, the
    right axis has its values. A panel below has the score by which a task chooses its best
    checkpoint, if it is not the loss.
    """
    lines = ranked(results, results.trained)[:MOST]
    scores = {n: found for n, line in enumerate(lines) if (found := _scores(line))}
    figure = style.empty(10, 5.6 + 0.11 * len(lines) + 2.2 * bool(scores))
    axis, *below = figure.subplots(1 + bool(scores), sharex=True, squeeze=False)[:, 0]
    drawn = [_curve(axis, number, line) for number, line in enumerate(lines)]
    axis.set_title(_title(results, results.trained), fontsize=11)
    for other in below:
        for number, points in scores.items():
            other.plot(*zip(*points, strict=True), markersize=4, **style.line(number))
        score = _of_task(results, "monitor", "val/score")
        other.set_ylabel(style.words(score) if score else "score")
        style.tidy(other)
    (below or [axis])[-1].set_xlabel("optimiser steps")
    predicted = _of_task(results, "predicts", "prediction")
    unit = f"nats per {predicted}" if predicted else "nats"
    axis.set_ylabel(f"loss ({unit})\nlines: training, points: validation")
    style.tidy(axis)
    if not any(drawn):
        axis.text(0.5, 0.5, "no run has taken a step", ha="center", transform=axis.transAxes)
        return figure
    final = f"{style.words(results.table.metric)} at the end, mean ± standard deviation"
    style.legend(figure, axis, style.escaped(final))
    style.clip(axis)
    if results.table.metric == "val/perplexity":
        _perplexity(axis)
    return figure


def budget(results: TableResults) -> Figure:
    """Draw the training loss of every row against what it cost."""
    lines = ranked(results, results.trained)[:MOST]
    figure = style.empty(11.2, 4.6 + 0.1 * len(lines))
    axes = figure.subplots(1, 2, sharey=True)
    for panel, title in zip(axes, (FLOPS, SECONDS), strict=True):
        for number, line in enumerate(lines):
            priced = [(cell, cost) for cell in line.cells if (cost := costs(cell).get(title))]
            runs = [(log, cost) for cell, cost in priced if (log := cell.losses())[0]]
            if runs:
                step = sum(cost for _, cost in runs) / len(runs)
                _band(panel, [log for log, _ in runs], number, step, line.title)
        panel.set_xscale("log")
        panel.set_xlabel(title)
        style.tidy(panel)
    axes[0].set_ylabel("training loss")
    style.legend(figure, axes[0])
    figure.suptitle(_title(results, results.trained), fontsize=11)
    return figure


def times(results: TableResults) -> Figure | None:
    """Draw the training time of each row, published times, and the metric against the time.

    None if fewer than two rows have a time.
    """
    known = [line for line in results.trained if line.ours and line.measured(WALL)]
    timed = ranked(results, known)[:MOST]
    if len(timed) < 2:
        return None
    printed = {line.name: t for line in timed if (t := line.printed(WALL)) is not None}
    figure = empty(11 + 3 * bool(printed), 2.4 + 0.3 * len(timed))
    axes = figure.subplots(1, 2 + bool(printed), squeeze=False)[0]
    last = axes[-1]
    for number, line in enumerate(timed):
        spent = line.measured(WALL)
        assert spent is not None
        assert line.ours is not None
        look = style.line(number) | {"linestyle": ""}
        bar = {"color": look["color"], "height": 0.6, "ecolor": "0.5"}
        axes[-2].barh(number, spent.mean, xerr=spent.std or None, **bar)
        ends = {"xerr": spent.std or None, "yerr": line.ours.std or None}
        last.errorbar(spent.mean, line.ours.mean, **ends, capsize=2, label=line.name, **look)
        if line.name in printed:
            axes[0].barh(number, printed[line.name], color=PAPER, height=0.6)
    for axis in axes[:-1]:
        axis.set_ylim(len(timed) - 0.5, -0.5)
        axis.set_yticks(range(len(timed)), [])
        axis.set_xlabel("training time (s)")
    axes[0].set_yticks(range(len(timed)), [escaped(line.name) for line in timed])
    if printed:
        axes[0].set_title("published", fontsize=10)
    axes[-2].set_title(escaped(style.with_scale("ours", results.scale)), fontsize=10)
    last.set_xlabel("training time (s)")
    last.set_ylabel(escaped(style.words(results.table.metric)))
    for axis in axes:
        style.tidy(axis)
        axis.set_axisbelow(True)
    style.legend(figure, last)
    figure.suptitle(_title(results, known), fontsize=11)
    return figure


def costs_known(results: TableResults) -> bool:
    """Whether two rows have a run whose FLOPs are known."""
    of_rows = [any(FLOPS in costs(cell) for cell in line.cells) for line in results.trained]
    return sum(of_rows) > 1


def costs(cell: Cell) -> dict[str, float]:
    """FLOPs and seconds of a step of a finished run, as far as they are recorded."""
    tokens = tokens_per_step(cell.config) if cell.state == "done" else None
    found = dict[str, float]()
    if tokens is None:
        return found
    if flops := metric(cell.record, "flops.training"):
        found[FLOPS] = flops * tokens
    if speed := metric(cell.record, "tokens_per_second"):
        found[SECONDS] = tokens / speed
    return found


def at_common_steps(logs: Sequence[Log]) -> tuple[list[float], list[list[float]]]:
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


def _band(axis: Axes, logs: Sequence[Log], number: int, step: float = 1.0, label: str = "") -> None:
    """Draw the mean of smoothed losses and the band of the runs; a step has this length."""
    import numpy as np

    steps, losses = at_common_steps(logs)
    places = sorted({*range(0, len(steps), -(-len(steps) // POINTS)), len(steps) - 1})
    smoothed = np.array([smooth(log) for log in losses])[:, places]
    x = step * np.array(steps)[places]
    style.band(axis, x, smoothed.mean(0), smoothed.min(0), smoothed.max(0), number, label)


def _curve(axis: Axes, number: int, line: Line) -> bool:
    """Draw the losses of a row's runs; return whether one took a step."""
    # The mean ends at the shortest log: an unfinished run would shorten it.
    cells = [cell for cell in line.cells if cell.state == "done"] or line.cells
    logs = [log for cell in cells if (log := cell.losses())[0]]
    if not logs:
        return False
    _band(axis, logs, number)
    look = style.line(number)
    marker = look.pop("marker")
    points = _means_by_step([validated(cell.record) for cell in line.cells])
    if points:
        size = 5 if len(points) <= 25 else 3
        # A white rim keeps a marker apart from its own line.
        rim: Any = {"markersize": size, "markeredgecolor": "white", "markeredgewidth": 0.6}
        axis.plot(*zip(*points, strict=True), marker, color=look["color"], **rim)
    end = f": {formatting.spread(line.ours)}" if line.ours else ""
    label = style.escaped(f"{line.title} ({formatting.seeds(len(logs))}){end}")
    axis.plot([], [], marker=marker if points else "", label=label, **look)
    return True


def _scores(line: Line) -> list[tuple[float, float]]:
    """(step, mean score) at every validation of a finished seed; empty for a task without one."""
    epochs = [[*cell.record.get("epochs", {}).values()] for cell in line.cells]
    scored = [[e for e in run if e.get("score") not in (None, e.get("loss"))] for run in epochs]
    return _means_by_step([[(e["step"], e["score"]) for e in run] for run in scored])


def _means_by_step(runs: Sequence[Sequence[tuple[float, float]]]) -> list[tuple[float, float]]:
    """(step, mean value) at every step of any run, over the runs that have it."""
    by_step: defaultdict[float, list[float]] = defaultdict(list)
    for step, value in (point for run in runs for point in dict(run).items()):
        by_step[step].append(value)
    return [(step, fmean(values)) for step, values in sorted(by_step.items())]


def _perplexity(axis: Axes) -> None:
    """A second axis, exp(loss), on the right."""
    import numpy as np
    from matplotlib.ticker import LogLocator, ScalarFormatter

    functions = (lambda x: np.exp(np.minimum(x, 700.0)), lambda x: np.log(np.maximum(x, 1e-9)))
    other = axis.secondary_yaxis("right", functions=functions)
    other.set_ylabel("perplexity")
    other.yaxis.set_major_locator(LogLocator(10, subs=(1.0, 1.5, 2.0, 3.0, 5.0, 7.0)))
    other.yaxis.set_major_formatter(ScalarFormatter())
    other.minorticks_off()


def _of_task(results: TableResults, attribute: str, default: str) -> str | None:
    """A class attribute of the rows' tasks, such as what a loss is per; None if they differ."""
    tasks = {str(cell.config["task"]["_target_"]) for cell in results.cells if cell.config}
    values = {schema.attribute(target, attribute, default) for target in tasks}
    return values.pop() if len(values) == 1 else None


def lengths(results: TableResults) -> Figure | None:
    """Draw one panel per family and one line per row: filled markers measured, hollow published.

    None if there are no families.
    """
    found = [family for family in families(results) if not family.name.endswith(NOT_DRAWN)]
    drawn = [family for family in found if len(family.keys) > 1]  # one point a line shows nothing
    if not drawn:
        return None
    # The legend beside the panels takes width, and height if there are many rows.
    figure = style.empty(5.2 * len(drawn) + 1.8, 4.6)
    axes = figure.subplots(1, len(drawn), squeeze=False)[0]
    printed = [_panel(axis, family, results) for axis, family in zip(axes, drawn, strict=True)]
    style.legend(figure, figure.axes[0])
    source = "; hollow: published" if any(printed) else ""
    figure.suptitle(style.escaped(f"{results.table.title}{source}"), fontsize=10)
    return figure


def _panel(axis: Axes, family: Family, results: TableResults) -> bool:
    """Draw a family; return whether the paper prints any value of it."""
    has_published = False
    for number, line in enumerate(ranked(results, results.lines)[:MOST]):
        means = {n: m.mean for n, key in family.keys.items() if (m := line.measured(key))}
        _line(axis, means, number, style.escaped(line.name))
        printed = {n: v for n, key in family.keys.items() if (v := _printed(line, key)) is not None}
        _line(axis, printed, number, None)
        has_published |= bool(printed)
    if family.unit != "block":
        axis.set_xscale("log", base=2)
        style.plain_log(axis)
    axis.set_xticks(list(family.keys), family.labels)
    title = NAMES.get(family.name) or style.words(family.name)
    axis.set_title(style.escaped(title), fontsize=10)
    axis.set_xlabel(family.unit)
    style.tidy(axis)
    return has_published


def _printed(line: Line, key: str) -> float | None:
    """A published value; that of a perplexity follows from its loss where only that is printed."""
    value = line.printed(key)
    loss = line.printed(key.replace("perplexity", "loss"))
    return math.exp(loss) if value is None and loss is not None and "perplexity" in key else value


def _line(axis: Axes, points: Mapping[int, float], number: int, label: str | None) -> None:
    """Draw the points; without a label they are published: thin and hollow."""
    look = style.line(number)
    if label is None:  # one printed length has no line at all
        look |= {"linestyle": ":", "linewidth": 1.0, "markerfacecolor": "white"}
    if points:
        axis.plot(list(points), list(points.values()), markersize=4, label=label, **look)
