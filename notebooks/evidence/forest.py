"""A picture of all claims: our ratio with its interval, and the paper's."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pandas as pd
from evidence import Ratio
from IPython.display import Image
from matplotlib.axes import Axes
from picture import small

from chimera.report.style import COLOURS

#: Ends of the axis: a ratio outside is an arrow at the end, so that it does not squeeze the others.
ENDS = (0.5, 2.0)
_COLOURS = {"holds": COLOURS[6], "open": "0.55", "does not hold": COLOURS[4]}


def forest(found: pd.DataFrame) -> Image:
    """Draw the claims, the largest reduction first, in few colours: the file stays small.

    Args:
        found: of `evidence.claims`.
    """
    rows = found.iloc[[*found["ratio"].map(lambda one: one.value).argsort()]]
    figure, axes = plt.subplots(figsize=(9.5, 0.29 * len(rows) + 1), dpi=90, layout="constrained")
    places = range(len(rows) - 1, -1, -1)
    for at, one in zip(places, rows.itertuples(), strict=True):
        _interval(axes, at, one.ratio, _COLOURS[one.verdict])
        if pd.notna(one.paper):
            axes.plot(one.paper, at, "D", mfc="none", color=COLOURS[0], markersize=6)
        axes.annotate(
            str(one.ratio).replace(" ×", ""),
            (1.06, at),
            xycoords=("axes fraction", "data"),
            va="center",
        )
    axes.set_yticks([*places], [*rows["claim"].map(_short)])
    axes.set(xscale="log", xlim=ENDS, ylim=(-0.7, len(rows) - 0.3))
    axes.set_xticks([0.5, 0.7, 1, 1.4, 2], ["0.5", "0.7", "1", "1.4", "2"])
    axes.minorticks_off()
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_xlabel("perplexity with the part divided by that without it; left of 1 is better")
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0, pad=12)
    marks = {verdict: axes.plot([], [], "o", color=c)[0] for verdict, c in _COLOURS.items()}
    marks["the paper's ratio"] = axes.plot([], [], "D", mfc="none", color=COLOURS[0])[0]
    figure.legend(marks.values(), marks, loc="outside upper center", ncols=4, frameon=False)
    return small(figure)


def _interval(axes: Axes, at: int, ratio: Ratio, colour: str) -> None:
    """A dot with its interval, or an arrow where it lies outside the axis."""
    low, high = ENDS
    if ratio.value < low or ratio.value > high:
        end, mark = (low, "<") if ratio.value < low else (high, ">")
        axes.plot(end, at, mark, color=colour, markersize=8, clip_on=False)
        return
    axes.plot([max(ratio.low, low), min(ratio.high, high)], [at, at], color=colour, linewidth=2)
    axes.plot(ratio.value, at, "o", color=colour, markersize=5)


def _short(claim: str) -> str:
    """A claim with its paper's name alone."""
    text, _, source = claim.partition(" (")
    return f"{text} ({source.split()[0].rstrip(')')})"
