"""Draw budget.png: training loss against FLOPs and against time, a band over seeds.

The steps of a run cost the same, so both axes are its steps times what a step costs: matrix
products of the training step by the model's count, and the time of a step without validations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from chimera.report import style
from chimera.report.cells import Cell
from chimera.report.figures import losses_of, together
from chimera.report.style import empty, escaped
from chimera.report.summary import Line, Summary
from chimera.rundir.steps import smooth

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Title of each panel.
FLOPS, SECONDS = "training FLOPs (matrix products)", "seconds of training steps"


def tokens_per_step(config: dict[str, Any]) -> float:
    """Tokens of an optimiser step without padding."""
    data = config["data"]
    length = data.get("seq_len") or config["model"]["max_len"]
    return float(data["batch_size"] * length * config["trainer"]["accumulate_grad_batches"])


def costs(cell: Cell) -> dict[str, float]:
    """FLOPs and seconds of a step of a finished run, as far as they are recorded."""
    if cell.state != "done" or not (cell.config.get("data") or {}).get("batch_size"):
        return {}
    tokens, found = tokens_per_step(cell.config), {}
    if flops := cell.fact("flops.training"):
        found[FLOPS] = flops * tokens
    if speed := cell.fact("tokens_per_second"):
        found[SECONDS] = tokens / speed
    return found


def known(summary: Summary) -> bool:
    """Whether two rows have a run whose FLOPs are known."""
    of_rows = [any(FLOPS in costs(cell) for cell in line.cells) for line in summary.trained]
    return sum(of_rows) > 1


def budget(summary: Summary, seconds: Mapping[str, float] | None = None) -> Figure:
    """Loss of every row against what it cost.

    Args:
        summary: of the table.
        seconds: of a step, by row; else each run's own, on its machine.
    """
    figure = empty(11.2, 4.6 + 0.1 * len(summary.trained))
    axes = figure.subplots(1, 2, sharey=True)
    for panel, title in zip(axes, (FLOPS, SECONDS), strict=True):
        for number, line in enumerate(summary.trained):
            _line(panel, line, number, title, (seconds or {}) if title == SECONDS else {})
        panel.set_xscale("log")
        panel.set_xlabel(title)
        style.tidy(panel)
    axes[0].set_ylabel("training loss")
    style.legend(figure, axes[0])
    title = style.with_scale(summary.table.title, summary.scale)
    figure.suptitle(escaped(title), fontsize=11)
    return figure


def _line(axis: Any, line: Line, number: int, title: str, step_costs: Mapping[str, float]) -> None:
    """Draw the mean of a row's runs and the band of its seeds."""
    runs = [
        (cost, log)
        for cell in line.cells
        if (cost := step_costs.get(line.name, costs(cell).get(title)))
        and (log := losses_of(cell.directory / "steps.csv"))[0]
    ]
    if not runs:
        return
    step = sum(cost for cost, _ in runs) / len(runs)
    steps, losses = together([log for _, log in runs])
    smoothed = [smooth(log) for log in losses]
    look = style.line(number)
    look.pop("marker", None)
    x, mean = style.thinned(_over(smoothed, lambda s: sum(s) / len(s)), [step * n for n in steps])
    axis.plot(x, mean, linewidth=1.5, label=escaped(line.title), **look)
    if len(runs) > 1:
        at = [step * n for n in steps]
        x, low = style.thinned(_over(smoothed, min), at)
        _, high = style.thinned(_over(smoothed, max), at)
        axis.fill_between(x, low, high, color=look["color"], alpha=0.15, linewidth=0)


def _over(logs: Sequence[Sequence[float]], take: Any) -> list[float]:
    return [take(step) for step in zip(*logs, strict=True)]
