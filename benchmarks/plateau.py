"""docs/scales.md: when a masked model leaves the unigram, from records of the default model.

The runs are the default model's on the default text, seed 0, 600 steps, validated every 200:
`python train.py norm=layernorm schedule=wsd trainer.max_steps=600 trainer.val_check_interval=200`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from benchmarks.markdown import grid
from benchmarks.stored import Pair, records
from chimera.report.digits import number

#: Choices and settings of the runs that are compared, and groups in which they differ.
CHOICES = {"preset": "none", "scale": "none", "norm": "layernorm", "schedule": "wsd"}
STEPS, EVERY, SEED = 600, 200, 0
GROUPS = ("mixer", "quant", "position")
#: Choices of the default model: not shown.
DEFAULTS = {"mixer": "", "quant": "none", "position": "learned"}


def plateau() -> str:
    """A line for each combination of parts, the lowest perplexity first."""
    return page(records("mlm-"))


def page(pairs: Iterable[Pair]) -> str:
    """The table of these records; runs of other settings are left out."""
    steps = range(EVERY, STEPS + 1, EVERY)
    found: list[tuple[float, list[str]]] = []
    unigrams = set[str]()
    for config, record in pairs:
        if not _is_compared(config):
            continue
        losses = {int(step): float(loss) for step, loss in record["validations"]}
        parts = [
            f"{group}={config['choices'][group]}"
            for group in GROUPS
            if config["choices"][group] != DEFAULTS[group]
        ]
        shown = [number(math.exp(losses[step]), 3) for step in steps]
        found.append((losses[STEPS], [f"`{' '.join(parts)}`", *shown]))
        unigrams.add(number(float(record["metrics"]["val/unigram_perplexity"]), 3))
    if not found:
        return "No records yet.\n"
    head = ["added to the line", *(f"after {step} steps" for step in steps)]
    lines = [head, ["---", *["---:"] * len(steps)], *(cells for _, cells in sorted(found))]
    table = grid(lines)
    return f"{table}\nA unigram model has {' or '.join(sorted(unigrams))} on the same tokens.\n"


def _is_compared(config: dict[str, Any]) -> bool:
    choices, trainer = config["choices"], config["trainer"]
    return (
        all(choices.get(group) == choice for group, choice in CHOICES.items())
        and (trainer["max_steps"], trainer["val_check_interval"]) == (STEPS, EVERY)
        and config["seed"] == SEED
    )
