"""Draw losses: curves.png against steps, budget.png against FLOPs and time, a band over seeds.

The steps of a run cost the same, so both axes of budget.png are its steps times what a step costs:
matrix products of the training step by the model's count, and the time of a step without
validations.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from chimera.config import signatures
from chimera.report import formatting, style
from chimera.report.results import Cell
from chimera.report.summary import Line, Summary
from chimera.rundir.steps import smooth, validated

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Titles of the panels of budget.png.
FLOPS = "training FLOPs (matrix products)"
SECONDS = "seconds of training steps"
#: Most points of a drawn line.
POINTS = 1500
Log = tuple[list[float], list[float]]


def curves(summary: Summary) -> Figure:
    """Draw each row's smoothed training loss as a line and its validation losses as points.

    Both are means over the row's seeds; the band is from the lowest to the highest seed. The legend
    has the table's metric at the end of training. If it is the perplexity of a validation, the
    right axis has its values. A panel below has the score by which a task chooses its best
    checkpoint, if it is not the loss.
    """
    lines = summary.trained
    scores = {n: found for n, line in enumerate(lines) if (found := _scores(line))}
    figure = style.empty(10, 5.6 + 0.11 * len(lines) + 2.2 * bool(scores))
    axis, *below = figure.subplots(1 + bool(scores), sharex=True, squeeze=False)[:, 0]
    drawn = [_curve(axis, number, line) for number, line in enumerate(lines)]
    title = style.with_scale(summary.table.title, summary.scale)
    axis.set_title(style.escaped(title), fontsize=11)
    for other in below:
        for number, points in scores.items():
            other.plot(*zip(*points, strict=True), markersize=4, **style.line(number))
        score = _of_task(summary, "monitor", "val/score")
        other.set_ylabel(style.words(score) if score else "score")
        style.tidy(other)
    (below or [axis])[-1].set_xlabel("optimiser steps")
    predicted = _of_task(summary, "predicts", "prediction")
    unit = f"nats per {predicted}" if predicted else "nats"
    axis.set_ylabel(f"loss ({unit})\nlines: training, points: validation")
    style.tidy(axis)
    if not any(drawn):
        axis.text(0.5, 0.5, "no run has taken a step", ha="center", transform=axis.transAxes)
        return figure
    final = f"{style.words(summary.table.metric)} at the end, mean ± standard deviation"
    style.legend(figure, axis, style.escaped(final))
    style.clip(axis)
    if summary.table.metric == "val/perplexity":
        _perplexity(axis)
    return figure


def budget(summary: Summary) -> Figure:
    """Draw the training loss of every row against what it cost."""
    figure = style.empty(11.2, 4.6 + 0.1 * len(summary.trained))
    axes = figure.subplots(1, 2, sharey=True)
    for panel, title in zip(axes, (FLOPS, SECONDS), strict=True):
        for number, line in enumerate(summary.trained):
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
    title = style.with_scale(summary.table.title, summary.scale)
    figure.suptitle(style.escaped(title), fontsize=11)
    return figure


def costs_known(summary: Summary) -> bool:
    """Whether two rows have a run whose FLOPs are known."""
    of_rows = [any(FLOPS in costs(cell) for cell in line.cells) for line in summary.trained]
    return sum(of_rows) > 1


def costs(cell: Cell) -> dict[str, float]:
    """FLOPs and seconds of a step of a finished run, as far as they are recorded."""
    if cell.state != "done" or not (cell.config.get("data") or {}).get("batch_size"):
        return {}
    tokens = tokens_per_step(cell.config)
    found = {}
    if flops := cell.fact("flops.training"):
        found[FLOPS] = flops * tokens
    if speed := cell.fact("tokens_per_second"):
        found[SECONDS] = tokens / speed
    return found


def tokens_per_step(config: dict[str, Any]) -> float:
    """Tokens of an optimiser step without padding."""
    data = config["data"]
    length = data.get("seq_len") or config["model"]["max_len"]
    return float(data["batch_size"] * length * config["trainer"]["accumulate_grad_batches"])


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
    steps, losses = at_common_steps(logs)
    smoothed = [smooth(log) for log in losses]
    every = -(-len(steps) // POINTS)
    places = sorted({*range(0, len(steps), every), len(steps) - 1})
    at = [[log[place] for log in smoothed] for place in places]
    x = [step * steps[place] for place in places]
    mean, low, high = ([take(values) for values in at] for take in (_mean, min, max))
    style.band(axis, x, mean, low, high, number, label)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


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
    runs = [cell.record.get("epochs", {}).values() for cell in line.cells]
    return _means_by_step(
        [
            [
                (epoch["step"], epoch["score"])
                for epoch in epochs
                if epoch.get("score") is not None and epoch["score"] != epoch.get("loss")
            ]
            for epochs in runs
        ]
    )


def _means_by_step(runs: Sequence[Sequence[tuple[float, float]]]) -> list[tuple[float, float]]:
    """(step, mean value) at every step of any run, over the runs that have it."""
    by_step: defaultdict[float, list[float]] = defaultdict(list)
    for run in runs:
        for step, value in dict(run).items():
            by_step[step].append(value)
    return [(step, _mean(values)) for step, values in sorted(by_step.items())]


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


def _of_task(summary: Summary, attribute: str, default: str) -> str | None:
    """A class attribute of the rows' tasks, such as what a loss is per; None if they differ."""
    tasks = {str(cell.config["task"]["_target_"]) for cell in summary.cells if cell.config}
    values = {signatures.attribute(target, attribute, default) for target in tasks}
    return values.pop() if len(values) == 1 else None
