"""A heat map of mixers and tasks: the score in each cell, a frame around the baseline."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pandas as pd
from IPython.display import Image
from matplotlib.patches import Rectangle
from picture import small


def heat(scores: pd.DataFrame, baseline: str) -> Image:
    """Draw scores, rows and columns in their order.

    Args:
        scores: from 0, a guess, to 1, no error; a row for each mixer.
        baseline: the row that is framed.
    """
    figure, axes = plt.subplots(
        figsize=(8.5, 0.3 * len(scores) + 1.1), dpi=80, layout="constrained"
    )
    axes.imshow(scores, vmin=0, vmax=1, cmap="Blues", aspect="auto")
    for y, row in enumerate(scores.to_numpy()):
        for x, value in enumerate(row):
            light = "white" if value > 0.6 else "black"
            axes.text(x, y, f"{value:.2f}", ha="center", va="center", fontsize=8, color=light)
    at = list(scores.index).index(baseline)
    frame = Rectangle((-0.5, at - 0.5), scores.shape[1], 1, fill=False, color="#D55E00", lw=2)
    axes.add_patch(frame)
    axes.set_xticks(range(scores.shape[1]), [*scores.columns], fontsize=9)
    axes.xaxis.tick_top()
    axes.tick_params(axis="x", rotation=25)
    axes.set_yticks(range(len(scores)), [*scores.index], fontsize=9)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    return small(figure)
