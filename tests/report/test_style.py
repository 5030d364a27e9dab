"""Lines of figures differ in grey print, names of metrics are words, legends cover no data."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from chimera.report import style
from chimera.rundir.steps import smooth


def lightness(colour: str) -> float:
    red, green, blue = to_rgb(colour)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_lines_differ_without_their_colours() -> None:
    looks = [style.line(number) for number in range(28)]
    assert len({(str(look["linestyle"]), look["marker"]) for look in looks}) == len(looks)
    first = [lightness(colour) for colour in style.COLOURS]
    assert min(abs(a - b) for a, b in pairwise(first)) > 0.08


@pytest.mark.parametrize(
    ("metric", "words"),
    [
        ("val/perplexity", "validation perplexity"),
        ("train/loss", "training loss (nats)"),
        ("val/mcc", "validation Matthews correlation"),
        ("tokens_per_second", "tokens per second"),
        ("mmlu/pqem", "mmlu pqem"),
    ],
)
def test_metrics_in_words(metric: str, words: str) -> None:
    assert style.words(metric) == words


def test_smoothing_grows_with_the_run_and_does_not_lag() -> None:
    short = [3.0, 1.0, 2.0]
    assert smooth(short) == short
    slope = [10.0 - 0.01 * step for step in range(800)]
    inside = slice(0, 780)  # at the end the window is cut off
    assert smooth(slope)[inside] == pytest.approx(slope[inside])
    noise = [float(step % 2) for step in range(800)]
    assert max(smooth(noise)[20:780]) < 0.51
    assert max(smooth(noise[:80])[2:78]) > 0.55
    gap = [1.0, math.nan, 1.0, 1.0]
    assert smooth(gap, 2) == [1.0] * 4


@pytest.mark.parametrize("name", ["a", "a name that is far longer than the others are"])
@pytest.mark.parametrize("count", [3, 14])
def test_a_legend_covers_no_data(name: str, count: int) -> None:
    figure = Figure(figsize=(9, 6), layout="constrained")
    FigureCanvasAgg(figure)
    axis = figure.subplots()
    for number in range(count):
        axis.plot([0, 1], [0, number], label=f"{name} {number}", **style.line(number))
    style.legend(figure, axis, "title")
    figure.draw_without_rendering()
    (legend,) = figure.legends
    assert not legend.get_window_extent().overlaps(axis.get_window_extent())
    box = legend.get_window_extent()
    assert box.x0 >= 0
    assert box.x1 <= figure.bbox.x1
