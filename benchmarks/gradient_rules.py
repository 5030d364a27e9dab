"""docs/results.md: QDYT's rules for the gradient of ternary weights, from the records in `store/`.

`lsq` and `standard` differ by a factor that AdamW divides out again (SPEC E7). It changes how often
the gradient is clipped: a record has the mean norm, after clipping, of each of many equal stretches
of the training, and the share of stretches with every step clipped stands beside the perplexity.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.markdown import table
from benchmarks.qdyt import RECORDS, SCALE, perplexities
from chimera.config.rates import lines_at
from chimera.paths import ROOT
from chimera.report import digits
from chimera.report.stats import spread
from chimera.rundir.store import check, paths

#: The table, the feed-forward layer of its rows, and the norm in the names of their records.
TABLE, FFN, NORM = "bitnet_qdyt/ste", "swiglu", "qdyt"
#: A run's configuration, run.json and, by stretch, the mean norm of its gradients after clipping.
Run = tuple[dict[str, Any], dict[str, Any], list[float]]


def gradient_rules() -> str:
    """A line for each rule and learning rate, the lowest perplexity first."""
    return page(runs(ROOT / "store"))


def runs(root: Path) -> Iterator[Run]:
    """The records of such runs."""
    for path in sorted(paths(root)):
        if path.name.startswith(f"{RECORDS}{NORM}-"):
            directory = check(path)
            with (path / "steps.csv").open(encoding="utf-8", newline="") as file:
                norms = [float(line["grad_norm"]) for line in csv.DictReader(file)]
            yield directory.config(), directory.record(), norms


def page(found: Iterable[Run]) -> str:
    """The table of these runs, without the seeds that chose the rates."""
    choosing = {line.seed for line in lines_at(TABLE, SCALE)}
    groups: dict[tuple[str, float], list[Run]] = {}
    for run in found:
        config = run[0]
        if _is_compared(config) and config["seed"] not in choosing:
            key = config["quant"]["ste"], float(config["optim"]["lr"])
            groups.setdefault(key, []).append(run)
    lines = []
    for (rule, rate), group in groups.items():
        by_mean = [perplexities(record) for _, record, _ in group]
        running, token = ([one[mean] for one in by_mean] for mean in ("running", "token"))
        clipped = [
            fmean(norm >= config["trainer"]["gradient_clip_val"] for norm in norms)
            for config, _, norms in group
        ]
        shown = [_spread(running), _spread(token), _range(clipped)]
        lines.append((fmean(running), [f"`{rule}`", f"{rate:g}", str(len(group)), *shown]))
    if not lines:
        return "No records yet.\n"
    head = ["rule", "rate", "seeds", "val/perplexity", "by the token's mean", "every step clipped"]
    return table(head, [line for _, line in sorted(lines)])


def _is_compared(config: dict[str, Any]) -> bool:
    """Whether a run has the settings of the table's rows: α warm after a tenth of its steps."""
    choices, norm, steps = config["choices"], config["norm"], config["trainer"]["max_steps"]
    return bool(
        (choices["scale"], choices["norm"], choices["ffn"]) == (SCALE, NORM, FFN)
        and norm["callbacks"]["qdyt"]["warmup_steps"] * 10 == steps
        and not norm.get("running_from")
    )


def _spread(values: list[float]) -> str:
    found = spread(values)
    assert found is not None
    return digits.spread(found)


def _range(shares: list[float]) -> str:
    low, high = min(shares), max(shares)
    return f"{low:.0%}" if f"{low:.0%}" == f"{high:.0%}" else f"{low:.0%} to {high:.0%}"
