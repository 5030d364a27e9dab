"""report.png and curves.png: the paper's values beside ours, and how every row learnt."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chimera.report import digits
from chimera.report.text import ours
from chimera.rundir.steps import smooth

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from chimera.report.summary import Line, Summary

PAPER, OURS = "0.45", "C0"


def bars(summary: Summary) -> Figure:
    """Published values on the left, ours on the right, each on its own scale, a row a line.

    Two axes because at our scale the numbers are of another size: what can be compared is the order
    of the rows and their distances.
    """
    lines = summary.lines
    figure = _figure(9.5, 1.5 + 0.42 * len(lines))
    published = any(line.published for line in lines)
    axes = figure.subplots(1, 2 if published else 1, sharey=True, squeeze=False)[0]
    if published:
        _published(axes[0], lines)
        axes[0].set_title("published", fontsize=10)
    _measured(axes[-1], lines)
    axes[-1].set_title(f"ours, scale={summary.scale}", fontsize=10)
    axes[0].set_yticks(range(len(lines)), [line.title for line in lines])
    axes[0].set_ylim(len(lines) - 0.5, -0.5)
    for axis in axes:
        axis.set_xlabel(f"{summary.table.metric} ({summary.table.better} is better)", fontsize=9)
        axis.grid(alpha=0.3, axis="x")
        axis.spines[["top", "right"]].set_visible(False)
        axis.margins(x=0.28)
    figure.suptitle(summary.table.title, fontsize=11)
    return figure


def curves(summary: Summary) -> Figure:
    """Smoothed training loss of every row, mean over its seeds, and validations as points."""
    figure = _figure(9, 5.5)
    axis = figure.subplots()
    drawn = 0
    for i, line in enumerate(summary.lines):
        # A seed that broke off early would cut the mean of the others short.
        cells = [cell for cell in line.cells if cell.state == "done"] or line.cells
        logs = [log for cell in cells if (log := _losses(cell.directory / "steps.csv"))]
        if not logs:
            continue
        length = min(map(len, logs))
        mean = [sum(log[step] for log in logs) / len(logs) for step in range(length)]
        colour, style = f"C{i % 10}", ("-", "--", ":")[i // 10 % 3]
        x, label = range(1, length + 1), _label(line, len(logs))
        axis.plot(x, smooth(mean), color=colour, linestyle=style, label=label)
        points = _validations(line)
        if points:
            axis.plot(*zip(*points, strict=True), "o", color=colour, markersize=4)
        drawn += 1
    axis.set_title(f"{summary.table.title}, scale={summary.scale}", fontsize=10)
    axis.set_xlabel("optimiser step")
    axis.set_ylabel("loss: lines in training, points in validation")
    axis.grid(alpha=0.3)
    axis.spines[["top", "right"]].set_visible(False)
    if drawn:
        axis.legend(frameon=False, fontsize=9)
    else:
        axis.text(0.5, 0.5, "no run has taken a step", ha="center", transform=axis.transAxes)
    return figure


def png(figure: Figure) -> bytes:
    """As PNG; nothing in it depends on when it was made."""
    out = io.BytesIO()
    figure.savefig(out, dpi=130, format="png", metadata={"Software": None})
    return out.getvalue()


def _figure(width: float, height: float) -> Figure:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _published(axis: Any, lines: tuple[Line, ...]) -> None:
    for y, line in enumerate(lines):
        if line.published:
            axis.plot(line.published.value, y, "D", color=PAPER, markersize=6)
            _note(axis, line.published.value, y, f"{line.published.value:g}")


def _measured(axis: Any, lines: tuple[Line, ...]) -> None:
    for y, line in enumerate(lines):
        if line.ours is None:
            inside = axis.get_yaxis_transform()
            axis.text(0.03, y, ours(line), color="C3", va="center", fontsize=9, transform=inside)
            continue
        for value in line.values.values():
            axis.plot(value, y, "|", color=OURS, alpha=0.6, markersize=9)
        axis.errorbar(line.ours.mean, y, xerr=line.ours.std or None, fmt="o", color=OURS, capsize=3)
        right = max(line.ours.mean + (line.ours.std or 0.0), *line.values.values())
        part = "" if line.ours.n == len(line.cells) else f" ({line.ours.n} of {len(line.cells)})"
        _note(axis, right, y, digits.spread(line.ours) + part)


def _note(axis: Any, x: float, y: int, text: str) -> None:
    axis.annotate(text, (x, y), (7, 0), textcoords="offset points", va="center", fontsize=9)


def _label(line: Line, seeds: int) -> str:
    end = f": {digits.spread(line.ours)}" if line.ours else ""
    return f"{line.title} ({seeds} seed{'s' * (seeds != 1)}){end}"


def _losses(log: Path) -> list[float]:
    if not log.exists():
        return []
    with log.open(newline="", encoding="utf-8") as file:
        return [float(row["loss"]) for row in csv.DictReader(file) if row.get("loss")]


def _validations(line: Line) -> list[tuple[float, float]]:
    """Mean validation loss at the steps that all finished seeds validated at."""
    logs = [dict(c.record["validations"]) for c in line.cells if c.record.get("validations")]
    if not logs:
        return []
    steps = sorted(set.intersection(*(set(log) for log in logs)))
    return [(step, sum(log[step] for log in logs) / len(logs)) for step in steps]
