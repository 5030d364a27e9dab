"""What a short convolution gives: recall of many mixers, small tasks, and text at equal budgets."""

from __future__ import annotations

from functools import cache
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
import yaml
from budgets import budgets
from evidence import Ratio, results, runs
from IPython.display import Image
from matplotlib.axes import Axes
from picture import small
from small_tasks import mean, profiles, scores

from chimera.paths import CONF

#: Without and with a convolution.
COLOURS = ("#0072B2", "#D55E00")
#: Accuracy from which recall counts as solved.
SOLVED = 0.99
#: Mixers of the small tasks, without and with a convolution.
PAIRS = (("attention", "conv_attention"), ("delta", "delta+conv=4"))
#: Measured of recall.
KEYS = ("accuracy", "steps")
#: What is held equal on text.
EQUAL = ("steps", "FLOPs", "seconds")


def has_own(mixer: str) -> bool:
    """Whether a mixer has a convolution of its own, as its file says."""
    own = yaml.safe_load((CONF / "mixer" / f"{mixer}.yaml").read_text(encoding="utf-8"))
    return bool(own.get("conv")) or "kernel" in own


@cache
def recall() -> pd.DataFrame:
    """Steps of training and accuracy of each mixer alone and behind a convolution, slowest first.

    `own` is whether the mixer has a convolution of its own.
    """
    rows = results("recall")["rows"]
    found = [
        {"mixer": name, "own": has_own(name)}
        | {f"{key} {part}": row[part][key] for part in ("alone", "behind") for key in KEYS}
        for name, row in rows.items()
        if row["behind"]
    ]
    order = ["steps alone", "accuracy alone", "mixer"]
    return pd.DataFrame(found).sort_values(order, ascending=[False, True, True])


def on_tasks() -> list[dict[str, Any]]:
    """Per pair and task: scores by seed without and with, after 800 steps and after 3,200."""
    first, later = scores(profiles()), scores(profiles(3200))
    return [
        {"mixer": pair[0], "task": task}
        | {name: first[mixer][task] for name, mixer in zip(("without", "with"), pair, strict=True)}
        | {
            f"{name} later": later.get(mixer, {}).get(task, {})
            for name, mixer in zip(("without", "with"), pair, strict=True)
        }
        for pair in PAIRS
        for task in sorted(first[pair[0]])
    ]


def on_text() -> dict[str, Ratio]:
    """Perplexity with a convolution before attention over that without it, by what is equal."""
    at = budgets("saidl/hybrids")
    found = {what: at.ratio(what, "conv_before_attn", "baseline") for what in EQUAL}
    return {what: ratio for what, ratio in found.items() if ratio is not None}


def shorter() -> list[dict[str, Any]]:
    """Pairs on text that have another budget, one seed each: perplexity without and with."""
    masked = runs("ours/default", choices__preset="none", choices__norm="layernorm", seed=0)
    masked = masked[(masked["trainer.max_steps"] == 600) & (masked["choices.schedule"] == "wsd")]
    masked = masked[(masked["choices.quant"] == "none") & (masked["choices.position"] == "learned")]
    masked = masked.set_index("choices.mixer")["val/perplexity"]
    causal = runs("saidl/hybrids", choices__scale="small", trainer__max_steps=1600, seed=0)
    causal = causal.set_index("row")["val/perplexity"]
    return [
        {
            "model": "masked, learned positions, 600 steps, one rate",
            "without": masked["attention"],
            "with": masked["conv_attention"],
        },
        {
            "model": "decoder, 1,600 steps, one rate",
            "without": causal["baseline"],
            "with": causal["conv_before_attn"],
        },
    ]


def figure() -> Image:
    """Recall, tasks and text in three panels, in few colours."""
    drawn, panels = plt.subplots(
        1, 3, figsize=(13, 7), dpi=80, width_ratios=(1, 1, 0.8), layout="constrained"
    )
    for draw, panel in zip((_recall, _tasks, _text), panels, strict=True):
        draw(panel)
        panel.spines[["top", "right"]].set_visible(False)
        panel.tick_params(axis="y", length=0)
    marks = [panels[0].plot([], [], "o", color=colour)[0] for colour in COLOURS]
    marks.append(panels[0].plot([], [], "o", mfc="none", color="0.4")[0])
    marks.append(panels[0].plot([], [], "D", color="0.4", markersize=5)[0])
    words = ["without", "with a convolution", "not solved", "after 3,200 steps"]
    drawn.legend(marks, words, loc="outside upper center", ncols=4, frameon=False)
    return small(drawn)


def _recall(axes: Axes) -> None:
    """Steps until recall is solved; hollow where it is not."""
    rows = recall()
    for at, row in enumerate(rows.to_dict("records")):
        ends = [row["steps alone"], row["steps behind"]]
        axes.plot(ends, [at, at], color="0.85", lw=2, zorder=1)
        for steps, part, colour in zip(ends, ("alone", "behind"), COLOURS, strict=True):
            face = colour if row[f"accuracy {part}"] >= SOLVED else "white"
            axes.plot(steps, at, "o", color=colour, mfc=face, markersize=5)
    axes.set_xscale("log")
    axes.set_xticks([200, 500, 1000, 2000, 4000], ["200", "500", "1,000", "2,000", "4,000"])
    axes.minorticks_off()
    names = [f"{one.mixer} *" if one.own else one.mixer for one in rows.itertuples()]
    axes.set_yticks(range(len(rows)), names, fontsize=8)
    axes.set_xlabel("steps of training, at most 4,000")
    axes.set_title("Recall, one rate (* has a convolution anyway)", loc="left", fontsize=10)


def _tasks(axes: Axes) -> None:
    """Scores of small tasks; diamonds where more steps were trained."""
    lines = on_tasks()[::-1]
    for at, line in enumerate(lines):
        ends = [mean(line["without"]), mean(line["with"])]
        axes.plot(ends, [at, at], color="0.85", lw=2, zorder=1)
        for score, part, colour in zip(ends, ("without", "with"), COLOURS, strict=True):
            axes.plot(score, at, "o", color=colour, markersize=5)
            if line[f"{part} later"]:
                axes.plot(mean(line[f"{part} later"]), at, "D", color=colour, markersize=5)
    names = [f"{line['mixer']}: {line['task']}" for line in lines]
    axes.set_yticks(range(len(lines)), names, fontsize=8)
    axes.set(xlim=(-0.05, 1.05), xlabel="score: 0 a guess, 1 no error")
    axes.set_title("Small tasks, 800 steps, own rates", loc="left", fontsize=10)


def _text(axes: Axes) -> None:
    """Ratios of perplexity; the lines of one seed have no interval."""
    lines: list[tuple[str, Ratio | float]] = [
        (f"3,000 steps, own rates, equal {what}", ratio) for what, ratio in on_text().items()
    ]
    lines += [(one["model"], one["with"] / one["without"]) for one in shorter()]
    for at, (_, ratio) in enumerate(lines[::-1]):
        value = ratio.value if isinstance(ratio, Ratio) else ratio
        if isinstance(ratio, Ratio):
            axes.hlines(at, ratio.low, ratio.high, color=COLOURS[1], lw=2)
        axes.plot(value, at, "o", color=COLOURS[1], markersize=6)
        axes.annotate(f"{value:.2f}", (value, at), (0, 8), textcoords="offset points", ha="center")
    axes.axvline(1, color="0.6", lw=1, ls=":")
    axes.set_xscale("log")
    axes.set_xlim(0.2, 1.1)
    axes.set_xticks([0.25, 0.5, 1], ["0.25", "0.5", "1"])
    axes.minorticks_off()
    axes.set_yticks(range(len(lines)), [name.replace(", ", ",\n") for name, _ in lines[::-1]])
    axes.tick_params(axis="y", labelsize=8)
    axes.set_ylim(-0.5, len(lines) - 0.4)
    axes.set_xlabel("perplexity with / without, attention")
    axes.set_title("Text", loc="left", fontsize=10)
