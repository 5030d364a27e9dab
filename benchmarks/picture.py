"""Draw the picture of README from the results files: `python -m benchmarks.picture`.

Left: training until a mixer recalls, against the size of its state (`recall.json`). Right: time of
a layer per token against the length of the text (`mixers.json`).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.__main__ import RESULTS
from chimera.paths import ROOT

FILE = ROOT / "docs" / "picture.svg"
#: Mixers that are named: colour and line; the others are grey.
NAMED = {
    "attention": ("#c0392b", "-"),
    "retnet": ("#1f618d", "-"),
    "delta": ("#117a65", "--"),
    "mamba": ("#7d3c98", "-."),
    "sliding_window": ("#b9770e", ":"),
}
GREY = "#bbbbbb"
#: Where a label of the left panel stands, in points from its mark.
PLACES = {
    "attention": (-4, -14),
    "deltaproduct": (7, -3),
    "delta": (-13, 8),
    "linear": (7, -3),
    "mlstm": (-14, 8),
    "mamba": (7, -3),
    "ode": (7, -3),
    "gqa": (-10, -14),
    "rwkv7": (-34, -14),
    "kda": (-28, 2),
    "gated_delta": (-70, 3),
    "gla": (7, -3),
    "mesa": (7, -3),
    "titan_memory": (7, -3),
    "aft_simple": (-12, 7),
    "slstm": (-12, -15),
    "retnet": (-14, 7),
    "aft_local": (-22, -15),
    "aft": (2, 7),
    "sliding_window": (-34, 8),
}
#: The same at the right ends of lines.
ENDS = {"sliding_window": (5, 6), "delta": (5, -3), "retnet": (5, -12)}
SOLVED, STEPS = 0.99, 4000


def main(to: Path = FILE) -> None:
    """Draw the two panels and write the file; equal results give equal bytes."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    plt.rcParams |= {"svg.hashsalt": "chimera", "font.size": 10, "axes.spines.top": False,
                     "axes.spines.right": False}  # fmt: skip
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.1), layout="constrained")
    recall(left, json.loads((RESULTS / "recall.json").read_text())["rows"])
    cost(right, json.loads((RESULTS / "mixers.json").read_text())["rows"])
    figure.savefig(to, metadata={"Date": None, "Creator": "python -m benchmarks.picture"})
    plt.close(figure)


def recall(axes: Any, rows: dict[str, Any]) -> None:
    """Steps until a mixer recalls against numbers kept, a mark for each mixer."""
    for name, row in rows.items():
        if not (alone := row.get("alone")):
            continue
        learnt = alone["accuracy"] >= SOLVED
        x, y = alone["state"], alone["steps"] if learnt else 1.75 * STEPS
        color, _ = NAMED.get(name, ("#2c3e50" if name in PLACES else GREY, ""))
        axes.plot(
            x, y, "o" if learnt else "x", color=color, ms=6, zorder=3 if name in PLACES else 2
        )
        if name in PLACES:
            axes.annotate(name, (x, y), PLACES[name], textcoords="offset points", color=color)
    axes.axhline(1.17 * STEPS, color=GREY, lw=1, ls=":")
    axes.set(xscale="log", yscale="log", ylim=(130, 2.7 * STEPS), xlim=(250, 4e5))
    ticks = [200, 500, 1000, 2000, STEPS]
    axes.set_yticks([*ticks, 1.75 * STEPS], [*(f"{n:,}" for n in ticks), "not"])
    axes.minorticks_off()
    axes.set_xticks([1e3, 1e4, 1e5], ["1,000", "10,000", "100,000"])
    axes.set_xlabel("numbers that a mixer keeps of 64 tokens")
    axes.set_ylabel("training steps until 99 % are right")
    axes.set_title("How soon a mixer learns to recall 8 pairs", loc="left")


def cost(axes: Any, rows: dict[str, Any]) -> None:
    """Microseconds a token against length, a line for each mixer."""
    ours = {name: row["seconds"] for name, row in rows.items() if row.get("ours")}
    for name, seconds in sorted(ours.items(), key=lambda item: item[0] in NAMED):
        lengths = sorted(map(int, seconds))
        each = [1e6 * seconds[str(n)] / n for n in lengths]
        color, style = NAMED.get(name, (GREY, "-"))
        axes.plot(lengths, each, color=color, ls=style, lw=2 if name in NAMED else 1)
        if name in NAMED:
            end, place = (lengths[-1], each[-1]), ENDS.get(name, (5, -3))
            style_of: Any = {"textcoords": "offset points", "annotation_clip": False}
            axes.annotate(name, end, place, color=color, **style_of)
    axes.set(xscale="log", yscale="log")
    axes.set_xticks(lengths, [f"{n:,}" for n in lengths])
    ticks = [10, 20, 50, 100, 200, 500]
    axes.set_yticks(ticks, map(str, ticks))
    axes.minorticks_off()
    axes.set_xlabel("tokens of the text")
    axes.set_ylabel("microseconds a token, one layer")
    axes.set_title("What it costs as the text grows", loc="left")


if __name__ == "__main__":
    main()
