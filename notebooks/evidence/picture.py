"""A figure as a small file: few colours, so that a notebook with its results stays small."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO

import matplotlib.pyplot as plt
import PIL.Image
from IPython.display import Image
from matplotlib.figure import Figure


def small(figure: Figure, colours: int = 64) -> Image:
    """The figure as a PNG with so many colours; rare ones, of thin lines, are kept."""
    drawn = BytesIO()
    reduced = BytesIO()
    figure.savefig(drawn)
    plt.close(figure)
    image = PIL.Image.open(drawn).convert("RGB")
    image.quantize(colours, PIL.Image.Quantize.MAXCOVERAGE).save(reduced, "png", optimize=True)
    return Image(reduced.getvalue())


def apart(places: Sequence[float], least: float) -> list[float]:
    """Places of labels, in the same order, moved so that neighbours are `least` apart.

    The labels stay centred on the places that they were moved from.
    """
    order = sorted(range(len(places)), key=lambda i: places[i])
    moved = [places[i] for i in order]
    for _ in range(200):
        for low in range(len(moved) - 1):
            lacking = least - (moved[low + 1] - moved[low])
            if lacking > 1e-9:
                moved[low] -= lacking / 2
                moved[low + 1] += lacking / 2
    return [moved[order.index(i)] for i in range(len(places))]
