"""Draw the ranks of adapters: by block and projection (ranks.png), and by epoch (gates.png).

A run records for each adapted layer the directions that are not zero (`alive/<layer>`) and the
entropy rank of its update (`rank/<layer>`); newer runs also record them at each validation
(SAIDL Figure 8, Table 13).
"""

from __future__ import annotations

import re
from collections import defaultdict
from statistics import fmean
from typing import TYPE_CHECKING, Any

from chimera.dotted import flatten
from chimera.report import style
from chimera.report.table_results import Line, TableResults

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Titles of the two lines of panels, by the start of a metric.
KINDS = {"alive": "nonzero directions", "rank": "entropy rank of the update"}
#: Titles of the panels by epoch, by the key of an epoch.
HISTORY = {"gate_sparsity": "share of zero directions", "rank": "nonzero directions, mean"}
#: Most maps beside each other.
MOST_BESIDE = 5
_LAYER = re.compile(r"(alive|rank)/(?:.*\.)?(\d+)\.(?:.*\.)?(\w+)")
#: Means over seeds, by (block, projection).
Map = dict[tuple[int, str], float]


def maps(line: Line) -> dict[str, Map]:
    """The ranks of a row's runs by kind; empty for a row without adapters."""
    found = defaultdict[tuple[str, int, str], list[float]](list)
    for cell in line.cells:
        for key, value in cell.record.get("metrics", {}).items():
            if match := _LAYER.fullmatch(key):
                found[match[1], int(match[2]), match[3]].append(value)
    by_kind: dict[str, Map] = {kind: {} for kind in KINDS}
    for (kind, block, projection), values in found.items():
        by_kind[kind][block, projection] = fmean(values)
    return by_kind if found else {}


def heatmaps(results: TableResults) -> Figure | None:
    """Nonzero directions and entropy ranks by block and projection; None without adapters."""
    of_rows = [(line, found) for line in results.trained if (found := maps(line))]
    if not of_rows:
        return None
    blocks = max(1 + block for _, found in of_rows for block, _ in found["alive"])
    wide = max(len({projection for _, projection in found["alive"]}) for _, found in of_rows)
    beside = min(len(of_rows), MOST_BESIDE)
    lines = -(-len(of_rows) // beside)
    figure = style.empty(beside * (1.1 + 0.5 * wide), len(KINDS) * lines * (1.2 + 0.3 * blocks))
    parts: Any = figure.subfigures(len(KINDS))
    for part, (kind, title) in zip(parts, KINDS.items(), strict=True):
        axes = part.subplots(lines, beside, squeeze=False)
        most = max(value for _, found in of_rows for value in found[kind].values())
        for axis, (line, found) in zip(axes.flat, of_rows, strict=False):
            _heatmap(axis, found[kind], most)
            axis.set_title(style.escaped(line.name), fontsize=9)
        for axis in axes.flat[len(of_rows) :]:
            axis.set_axis_off()
        part.supylabel("block", fontsize=9)
        part.suptitle(title, fontsize=10)
    title = style.with_scale(results.table.title, results.scale)
    figure.suptitle(style.escaped(title), fontsize=11)
    return figure


def _heatmap(axis: Axes, found: Map, most: float) -> None:
    """One map with its numbers; equal numbers have one colour in all maps of a kind."""
    import numpy as np

    blocks = sorted({block for block, _ in found})
    projections = list(dict.fromkeys(projection for _, projection in found))
    values = np.array([[found.get((b, p), np.nan) for p in projections] for b in blocks])
    axis.imshow(values, vmin=0, vmax=most, cmap="Blues", aspect="auto")
    for (y, x), value in np.ndenumerate(values):
        if np.isfinite(value):
            colour = "white" if value > 0.6 * most else "black"
            axis.text(x, y, f"{value:.3g}", ha="center", va="center", fontsize=7, color=colour)
    axis.set_xticks(range(len(projections)), projections, rotation=60, ha="right", fontsize=7)
    axis.set_yticks(range(len(blocks)), map(str, blocks), fontsize=7)


def history(results: TableResults) -> Figure | None:
    """Sparsity and rank by epoch; None if no direction of a run was ever zero."""
    drawn: dict[str, list[tuple[int, Line, dict[int, float]]]] = {key: [] for key in HISTORY}
    for number, line in enumerate(results.trained):
        epochs = [flatten(cell.record.get("epochs", {})) for cell in line.cells]
        for key, of_rows in drawn.items():
            found = defaultdict[int, list[float]](list)
            for name, value in (item for run in epochs for item in run.items()):
                epoch, _, last = name.partition(".")
                if last == key:
                    found[int(epoch)].append(value)
            if found:
                of_rows.append((number, line, {n: fmean(v) for n, v in sorted(found.items())}))
    if not any(max(shares.values()) for *_, shares in drawn["gate_sparsity"]):
        return None
    figure = style.empty(10.5, 4.6)
    axes = figure.subplots(1, len(HISTORY))
    for axis, (key, title) in zip(axes, HISTORY.items(), strict=True):
        for number, line, values in drawn[key]:
            look = style.line(number)
            axis.plot(list(values), list(values.values()), label=style.escaped(line.name), **look)
        axis.set_xlabel("epoch")
        axis.set_ylabel(title)
        axis.set_ylim(bottom=0)
        style.tidy(axis)
    style.legend(figure, axes[0])
    title = style.with_scale(results.table.title, results.scale)
    figure.suptitle(style.escaped(title), fontsize=11)
    return figure
