"""Make figures that look alike, and write them without a display.

Lines differ in colour, dash and marker at once, so that they are told apart in grey print and by
readers who do not see all colours. The first seven colours are Okabe and Ito's
(jfly.uni-koeln.de/color), without yellow, which is too light for a thin line; neighbours in the
list differ in lightness.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chimera.safe_io import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#0072B2", "#E69F00", "#000000", "#CC79A7", "#D55E00", "#56B4E9", "#009E73",
           "#882255", "#999933", "#5B3FA8", "#8A8A8A", "#7F4A1E")  # fmt: skip
DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1, 1.3)), (0, (6, 2, 1, 2)), (0, (10, 3)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", "*", ">", "h")
DPI = 130
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


def empty(width: float, height: float) -> Figure:
    """A figure of so many inches that needs no display."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # slow to import
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save(figure: Figure, file: Path, forms: Sequence[str] = ("png", "svg", "pdf")) -> None:
    """Write a figure in these forms beside each other: equal figures give equal bytes.

    Args:
        figure: to be written.
        file: its name; each form replaces the suffix.
        forms: png, svg, pdf.
    """
    import matplotlib  # slow to import

    figure.draw_without_rendering()
    figure.set_layout_engine("none")  # all forms have one layout
    fonts: Any = {"svg.fonttype": "none", "svg.hashsalt": file.stem, "pdf.fonttype": 42}
    undated = {"png": {"Software": None}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}
    with matplotlib.rc_context(fonts):
        for form in forms:
            with replacing(file.with_suffix(f".{form}")) as new:
                figure.savefig(new, format=form, dpi=DPI, metadata=undated[form])


def escaped(text: str) -> str:
    """Escape text for matplotlib, which reads text between dollar signs as a formula."""
    return text.replace("$", r"\$")


def line(number: int) -> dict[str, Any]:
    """Colour, dash and marker of a line, by its number from 0; 660 lines differ."""
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


def band(axis: Axes, x: Any, mean: Any, low: Any, high: Any, number: int, label: str = "") -> None:
    """A line of means with a shade from the lowest to the highest value.

    Args:
        axis: to draw on.
        x, mean, low, high: of each point.
        number: of the line, from 0.
        label: in the legend, as it is written; empty: none.
    """
    look = line(number)
    look.pop("marker")
    axis.plot(x, mean, linewidth=1.5, label=escaped(label) or None, **look)
    axis.fill_between(x, low, high, color=look["color"], alpha=0.15, linewidth=0)


def clip(axis: Axes) -> None:
    """End an axis of losses above those that follow the first tenth of each line, and all points.

    The first losses fall from that of chance, ln V: they would take most of the height. Points are
    validations, whose rise a reader must see.
    """
    import numpy as np

    finite = list[float]()
    for drawn in axis.lines:
        losses = np.asarray(drawn.get_ydata(), float)
        if drawn.get_linestyle() != "None" and len(losses) > 1:
            losses = losses[max(1, len(losses) // 10) :]
        finite += losses[np.isfinite(losses)].tolist()
    low, high = axis.get_ylim()
    if finite and max(finite) < high:
        room = 0.05 * (max(finite) - min(finite))  # matplotlib's is of the first losses, too
        axis.set_ylim(max(low, min(finite) - room), max(finite) + room)


def plain_log(axis: Axes) -> None:
    """Make the y axis logarithmic, with numbers in place of powers at its ticks."""
    from matplotlib.ticker import LogLocator, NullFormatter

    axis.set_yscale("log")
    low, high = axis.get_ylim()
    some = (1.0, 2.0, 5.0) if high < 300 * low else (1.0,)
    axis.yaxis.set_major_locator(LogLocator(10, subs=some))
    axis.yaxis.set_major_formatter(lambda x, _: f"{x:,.0f}" if x >= 1 else f"{x:g}")
    axis.yaxis.set_minor_formatter(NullFormatter())


def with_scale(title: str, scale: str) -> str:
    """A title with the scale in words: `Norms, small scale`."""
    return title if scale == "none" else f"{title}, {scale} scale"


def tidy(axis: Axes) -> None:
    """A light grid, and no box around the data."""
    axis.grid(alpha=0.3)
    axis.spines[["top", "right"]].set_visible(False)


def legend(figure: Figure, axis: Axes, title: str | None = None) -> None:
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
