"""Draw report.png (published and measured values), curves.png (loss) and lengths.png."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chimera.report import digits, measured
from chimera.report.escape import figure as escaped
from chimera.report.measured import Family
from chimera.report.summary import Line, Summary
from chimera.rundir.steps import column, smooth

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAPER, OURS = "0.45", "C0"
#: Families without a panel: their panel of perplexity has the same information.
NOT_DRAWN = ("loss",)
#: Titles of panels whose key is not clear enough.
NAMES = {"rank/layer": "entropy rank of a block's updates, mean"}


def bars(summary: Summary) -> Figure:
    """Draw published values on the left and measured ones on the right, one line per row.

    Each side has its own axis, because the values at a small scale differ in size from the paper's;
    comparable are the order of the rows and their distances.
    """
    lines = summary.lines
    figure = _figure(9.5, 1.5 + 0.42 * len(lines))
    published = any(line.published for line in lines)
    axes = figure.subplots(1, 2 if published else 1, sharey=True, squeeze=False)[0]
    if published:
        _published(axes[0], lines)
        axes[0].set_title("published", fontsize=10)
    _measured(axes[-1], lines)
    axes[-1].set_title(escaped(f"ours, scale={summary.scale}"), fontsize=10)
    axes[0].set_yticks(range(len(lines)), [escaped(line.title) for line in lines])
    axes[0].set_ylim(len(lines) - 0.5, -0.5)
    metric = escaped(f"{summary.table.metric} ({summary.table.better} is better)")
    for axis in axes:
        axis.set_xlabel(metric, fontsize=9)
        axis.grid(alpha=0.3, axis="x")
        axis.spines[["top", "right"]].set_visible(False)
        axis.margins(x=0.28)
    figure.suptitle(escaped(summary.table.title), fontsize=11)
    return figure


def curves(summary: Summary) -> Figure:
    """Draw each row's smoothed training loss as a line and its validation loss as points.

    Both are means over the row's seeds.
    """
    figure = _figure(9, 5.5)
    axis = figure.subplots()
    drawn = [_curve(axis, number, line) for number, line in enumerate(summary.lines)]
    axis.set_title(escaped(f"{summary.table.title}, scale={summary.scale}"), fontsize=10)
    axis.set_xlabel("optimiser step")
    axis.set_ylabel("loss (lines: training, points: validation)")
    axis.grid(alpha=0.3)
    axis.spines[["top", "right"]].set_visible(False)
    if any(drawn):
        axis.legend(frameon=False, fontsize=9)
    else:
        axis.text(0.5, 0.5, "no run has taken a step", ha="center", transform=axis.transAxes)
    return figure


def lengths(summary: Summary) -> Figure | None:
    """Draw one panel per family and one line per row: solid measured, dashed published.

    None if there are no families.
    """
    families = [f for f in measured.families(summary) if not f.name.endswith(NOT_DRAWN)]
    if not families:
        return None
    figure, dashed = _figure(5.2 * len(families), 4.6), False
    axes = figure.subplots(1, len(families), squeeze=False)[0]
    for axis, family in zip(axes, families, strict=True):
        dashed |= _panel(axis, family, summary)
    figure.axes[0].legend(frameon=False, fontsize=8)
    source = f"; dashed: {summary.table.source}" if dashed else ""
    figure.suptitle(escaped(f"{summary.table.title}{source}"), fontsize=10)
    return figure


def png(figure: Figure) -> bytes:
    """Encode a figure as PNG without a time, so that equal figures give equal bytes."""
    out = io.BytesIO()
    figure.savefig(out, dpi=130, format="png", metadata={"Software": None})
    return out.getvalue()


def _figure(width: float, height: float) -> Figure:
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # slow to import
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
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
        _note(axis, right, y, digits.spread(line.ours) + part)


def _note(axis: Any, x: float, y: int, text: str) -> None:
    axis.annotate(text, (x, y), (7, 0), textcoords="offset points", va="center", fontsize=9)


def _curve(axis: Any, number: int, line: Line) -> bool:
    """Draw the mean loss of a row's runs; False if no run has taken a step."""
    # The mean ends at the shortest log: an unfinished run would shorten it.
    cells = [cell for cell in line.cells if cell.state == "done"] or line.cells
    logs = [log for cell in cells if (log := _losses(cell.directory / "steps.csv"))]
    if not logs:
        return False
    length = min(map(len, logs))
    mean = [sum(log[step] for log in logs) / len(logs) for step in range(length)]
    colour, style = f"C{number % 10}", ("-", "--", ":")[number // 10 % 3]
    label = escaped(_label(line, len(logs)))
    axis.plot(range(1, length + 1), smooth(mean), color=colour, linestyle=style, label=label)
    points = _validations(line)
    if points:
        axis.plot(*zip(*points, strict=True), "o", color=colour, markersize=4)
    return True


def _label(line: Line, seeds: int) -> str:
    end = f": {digits.spread(line.ours)}" if line.ours else ""
    return f"{line.title} ({seeds} seed{'s' * (seeds != 1)}){end}"


def _losses(log: Path) -> list[float]:
    return [float(text) for text in column(log, "loss") if text] if log.exists() else []


def _validations(line: Line) -> list[tuple[float, float]]:
    """(step, mean validation loss) at the validation steps that all finished seeds share."""
    logs = [dict(c.record["validations"]) for c in line.cells if c.record.get("validations")]
    if not logs:
        return []
    steps = sorted(set.intersection(*(set(log) for log in logs)))
    return [(step, sum(log[step] for log in logs) / len(logs)) for step in steps]


def _panel(axis: Any, family: Family, summary: Summary) -> bool:
    """Draw a family; return whether the paper prints any value of it."""
    dashed = False
    for number, line in enumerate(summary.lines):
        means = {n: v.mean for n, key in family.keys.items() if (v := line.measured(key))}
        _line(axis, means, number, escaped(line.name))
        printed = {n: measured.published(summary, line, key) for n, key in family.keys.items()}
        dashed |= _line(axis, printed, number, None)
    if family.unit == "tokens":
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
    axis.set_xticks(list(family.keys), family.labels)
    axis.set_title(escaped(NAMES.get(family.name, family.name)), fontsize=10)
    axis.set_xlabel("trained lengths" if family.multiples else family.unit, fontsize=9)
    axis.grid(alpha=0.3)
    axis.spines[["top", "right"]].set_visible(False)
    return dashed


def _line(axis: Any, points: Mapping[int, float | None], number: int, label: str | None) -> bool:
    """Draw the points that have a value; return whether there is one."""
    drawn = [(n, value) for n, value in points.items() if value]
    if drawn:
        style = "-o" if label else "--"
        axis.plot(*zip(*drawn, strict=True), style, color=f"C{number % 10}", ms=3, label=label)
    return bool(drawn)
