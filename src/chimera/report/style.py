"""Colours, dashes, markers and words that all figures share.

Lines differ in colour, dash and marker at once, so that they are told apart in grey print and by
readers who do not see all colours. The colours are Okabe and Ito's (jfly.uni-koeln.de/color),
without yellow, which is too light for a thin line; neighbours in the list differ in lightness.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

COLOURS = ("#0072B2", "#E69F00", "#000000", "#CC79A7", "#D55E00", "#56B4E9", "#009E73")
DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1, 1.3)), (0, (6, 2, 1, 2)), (0, (10, 3)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", "*", ">", "h")
#: Words of metrics' last part, by that part; any other is written with spaces.
WORDS = {
    "perplexity": "perplexity",
    "loss": "loss (nats)",
    "accuracy": "accuracy",
    "mcc": "Matthews correlation",
    "f1": "F1",
    "bits_per_byte": "bits per byte",
    "tokens_per_second": "tokens per second",
    "wall_seconds": "time (s)",
}
#: Words of a metric's first part.
SPLITS = {"val": "validation", "test": "test", "train": "training"}


def line(number: int) -> dict[str, Any]:
    """Colour, dash and marker of a line, by its number from 0; 385 lines differ."""
    return {
        "color": COLOURS[number % len(COLOURS)],
        "linestyle": DASHES[number % len(DASHES)],
        "marker": MARKERS[number % len(MARKERS)],
    }


def words(metric: str) -> str:
    """A metric's key in words: `val/perplexity` is `validation perplexity`."""
    split, slash, name = metric.partition("/")
    if not slash:
        return WORDS.get(metric, metric.replace("_", " ").replace(".", " "))
    first = SPLITS.get(split, split.replace("_", " "))
    return f"{first} {WORDS.get(name, name.replace('_', ' ').replace('/', ' '))}"


def with_scale(title: str, scale: str) -> str:
    """A title with the scale in words: `Norms, small scale`."""
    return title if scale == "none" else f"{title}, {scale} scale"


def tidy(axis: Any) -> None:
    """A light grid, and no box around the data."""
    axis.grid(alpha=0.3)
    axis.spines[["top", "right"]].set_visible(False)


def thinned(
    values: list[float], steps: Sequence[float], limit: int = 1500
) -> tuple[list[float], list[float]]:
    """Steps and values, at most so many of them, evenly, with the last one."""
    every = max(1, -(-len(values) // limit))
    places = [*range(0, len(values), every)]
    if values and places[-1] != len(values) - 1:
        places.append(len(values) - 1)
    return [steps[place] for place in places], [values[place] for place in places]


def legend(figure: Any, axis: Any, title: str | None = None) -> None:
    """The legend beside or below the data, never over them.

    Args:
        figure: with constrained layout.
        axis: whose lines it names; nothing is drawn if none has a label.
        title: above the names.
    """
    handles, labels = axis.get_legend_handles_labels()
    if not handles:
        return
    # Long names would take the plot's width; below it they stand in columns.
    long = max(map(len, labels))
    beside = long <= 28 and len(labels) > 4
    figure.legend(
        handles,
        labels,
        loc="outside right center" if beside else "outside lower center",
        ncols=1 if beside else max(1, min(4, 140 // (long + 8))),
        title=title,
        frameon=False,
        fontsize=8.5,
        title_fontsize=9,
        handlelength=4,
    )
