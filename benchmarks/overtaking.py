"""docs/scales.md: a part that is behind in a short run and ahead in a longer one, from records.

The runs are those of two rows of `saidl/hybrids`, four times as long as `small` allows, one seed:
`python train.py +saidl/hybrids=conv_before_attn scale=small trainer.max_steps=1600 seed=0`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from benchmarks.markdown import grid
from benchmarks.stored import Pair, records
from chimera.report.digits import number

TABLE, ROWS = "saidl/hybrids", ("baseline", "conv_before_attn")
SCALE, STEPS, SEED = "small", 1600, 0


def overtaking() -> str:
    """Validation perplexity of both rows by step."""
    return page(records("causal_lm-"))


def page(pairs: Iterable[Pair]) -> str:
    """The table of these records; runs of other settings are left out."""
    found: dict[str, dict[int, float]] = {}
    for config, record in pairs:
        about = config["choices"]["scale"], config["trainer"]["max_steps"], config["seed"]
        if config["table"]["name"] == TABLE and about == (SCALE, STEPS, SEED):
            losses = {int(step): float(loss) for step, loss in record["validations"]}
            found[config["table"]["row"]] = losses
    if not found.keys() >= set(ROWS):
        return "No records yet.\n"
    steps = sorted(set.intersection(*(set(found[row]) for row in ROWS)))
    lines = [["row", *(f"step {step}" for step in steps)], ["---", *["---:"] * len(steps)]]
    for row in ROWS:
        lines.append([f"`{row}`", *(number(math.exp(found[row][step]), 4) for step in steps)])
    return grid(lines)
