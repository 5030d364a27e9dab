"""docs/results.md: how many of SoRA's gates live, from the records of SAIDL's sweep of λ.

A proximal step takes its threshold from a gate, so that over a run Σ η_t·λ (or steps·ξ) is what a
gate loses if no gradient holds it: one that starts from N(0, 1) dies with probability
erf(Σ / √2), one that starts at 1 if Σ > 1. The table sets this beside what the runs kept.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from benchmarks.markdown import table
from benchmarks.stored import Pair, records
from chimera.config.tables import load
from chimera.optim.schedule import warmup_cosine
from chimera.report import digits

#: The table, of which of its runs, and start of the names of their records.
TABLE, SCALE, DATA, RECORDS = "saidl/lambda", "medium", "glue", "cola-attention-"
#: Words for what a gate starts from, and the sign of each threshold.
STARTS, SIGNS = {"normal": "N(0, 1)", "ones": "1"}, {"lr_lambda": "η·λ, λ", "xi": "ξ"}


@dataclass(frozen=True, order=True)
class Line:
    """What the runs of one line of the table have in common.

    Args:
        start, threshold: options of the adapter.
        value: λ or ξ.
        row: of the table.
        taken: sum of the thresholds of all steps.
        rank: gates of a layer.
    """

    start: str
    threshold: str
    value: float
    row: str
    taken: float
    rank: int

    @property
    def kept(self) -> float:
        """Gates of a layer that would live without a gradient, in the mean."""
        if self.start == "ones":
            return float(self.rank * (self.taken < 1))
        return self.rank * math.erfc(self.taken / math.sqrt(2))


def gates() -> str:
    """A line for each threshold and start of the gates."""
    return page(records(RECORDS))


def page(pairs: Iterable[Pair]) -> str:
    """The table of these runs; those of other tables are left out."""
    alive: dict[Line, list[float]] = {}
    scores: dict[Line, list[float]] = {}
    for config, record in pairs:
        choices, named = config["choices"], config.get("table") or {}
        if (named.get("name"), choices["scale"], choices["data"]) == (TABLE, SCALE, DATA):
            line = line_of(config, record["steps"])
            alive.setdefault(line, []).append(float(record["metrics"]["val/rank"]))
            scores.setdefault(line, []).append(float(record["metrics"]["val/mcc"]))
    if not alive:
        return "No runs yet.\n"
    printed = {one.row: one.value for one in load(TABLE).published if one.column == "val/rank"}
    head = ["gates start at", "threshold", "the paper keeps", "taken in all", "no gradient keeps"]
    body = [
        [
            STARTS[line.start],
            f"{SIGNS[line.threshold]} = {line.value:g}",
            f"{printed[line.row]:g}" if line.row in printed else "–",
            f"{line.taken:.3g}",
            f"{line.kept:.1f}",
            str(len(alive[line])),
            digits.values(alive[line]),
            digits.values(scores[line]),
        ]
        for line in sorted(alive)
    ]
    return table([*head, "seeds", "here", "MCC"], body)


def line_of(config: dict[str, Any], steps: int) -> Line:
    """The line of a run.

    Args:
        config: of the run.
        steps: that it took.
    """
    adapter, optim = config["adapter"], config["optim"]
    if adapter["threshold"] == "xi":
        value, taken = adapter["xi"], steps * adapter["xi"]
    else:
        value = adapter["l1"]
        assert optim["schedule"]["_target_"].endswith(".warmup_cosine"), "another schedule"
        factor = warmup_cosine(steps, optim["warmup"], optim["min_ratio"])
        rate = optim["lr"] * optim["rates"]["gate"]
        taken = rate * value * sum(factor(step) for step in range(steps))
    start, threshold = adapter["gates"], adapter["threshold"]
    row = config["table"]["row"]
    return Line(start, threshold, value, row, float(f"{taken:.6g}"), adapter["r"])
