"""Time per token of every mixer over the length of the text, a panel for each family."""

from __future__ import annotations

import math

import matplotlib.pyplot as plt
import pandas as pd
from IPython.display import Image
from matplotlib.axes import Axes
from picture import apart, small

from chimera.report.style import COLOURS

#: Mixers by family; each is in one.
FAMILIES = {
    "attention": "gqa mqa mla gated_attention differential forgetting path",
    "windows, blocks, AFT": "sliding_window sparse_block aft aft_local aft_simple",
    "linear, with decay": "linear retnet gla hgrn2 mlstm log_linear",
    "delta rule": "delta deltaproduct gated_delta kda rwkv7 mesa ttt_linear",
    "state spaces, convolution, recurrence": "mamba mamba2 hyena slstm ode titan_memory",
    "combinations": "conv_attention hymba liza routed titan_attention",
}
#: In every panel, grey.
BASELINE = "attention"


def growth(seconds: pd.DataFrame) -> Image:
    """Draw µs per token over tokens.

    Args:
        seconds: of a pass, by mixer and length.

    Raises:
        ValueError: a mixer is in no family, or in two.
    """
    named = [BASELINE, *(name for family in FAMILIES.values() for name in family.split())]
    if sorted(named) != sorted(seconds.index):
        raise ValueError(f"families and mixers differ: {set(named) ^ set(seconds.index)}")
    per_token = 1e6 * seconds / seconds.columns.astype(int)
    figure, panels = plt.subplots(
        2, 3, figsize=(11, 7), dpi=80, sharex=True, sharey=True, layout="constrained"
    )
    for panel, (title, names) in zip(panels.flat, FAMILIES.items(), strict=True):
        _family(panel, per_token.loc[[BASELINE, *names.split()]])
        panel.set_title(title, fontsize=11)
    figure.supxlabel("tokens", fontsize=10)
    figure.supylabel("µs per token, forward and backward", fontsize=10)
    return small(figure)


def _family(panel: Axes, lines: pd.DataFrame) -> None:
    colours = ("0.6", *COLOURS)
    ends = []
    for colour, (_, line) in zip(colours, lines.iterrows(), strict=False):
        known = line.dropna()
        panel.loglog(known.index.astype(int), known, color=colour, linewidth=1.6)
        ends.append((int(known.index[-1]), float(known.iloc[-1])))
    places = apart([math.log(y) for _, y in ends], 0.26)
    for colour, name, (x, y), place in zip(colours, lines.index, ends, places, strict=False):
        panel.annotate(
            name, (x, y), (9800, math.exp(place)), color=colour, va="center", fontsize=9,
            arrowprops={"arrowstyle": "-", "color": colour, "linewidth": 0.5},
        )  # fmt: skip
    panel.set_xlim(470, 42000)
    panel.set_xticks([512, 2048, 8192], ["512", "2,048", "8,192"])
    panel.minorticks_off()
    panel.spines[["top", "right"]].set_visible(False)
