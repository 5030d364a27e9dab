"""docs/results.md: QDYT's rules for the gradient of ternary weights, from the records in `store/`.

`lsq` and `standard` differ by a factor that AdamW divides out again (SPEC E7). It changes how often
the gradient is clipped: a record has the mean norm, after clipping, of each of many equal stretches
of the training, and the share of stretches with every step clipped stands beside the perplexity.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.markdown import table
from benchmarks.qdyt import PRESET, RECORDS, SCALE, perplexities
from benchmarks.stored import named
from chimera.config.row_learning_rates import chosen, lines_at
from chimera.paths import ROOT
from chimera.report import digits
from chimera.report.stats import paired

#: The table, the feed-forward layer of its rows, and the norm in the names of their records.
TABLE, FFN, NORM = "bitnet_qdyt/ste", "swiglu", "qdyt"
#: The rule that the others are compared with; rows have the names of their rules.
REFERENCE = "lsq"
#: A run's configuration, run.json and, by stretch, the mean norm of its gradients after clipping.
Run = tuple[dict[str, Any], dict[str, Any], list[float]]


def gradient_rules() -> str:
    """A line for each rule, the lowest perplexity first."""
    return page(runs(ROOT / "experiments"))


def runs(root: Path) -> Iterator[Run]:
    """The records of such runs."""
    for record in named(root, f"{RECORDS}{NORM}-"):
        yield record.config, record.result, record.steps["grad_norm"]


def page(found: Iterable[Run]) -> str:
    """The table of these runs: each rule at its own rate, on the seeds that all rules have."""
    by_rule: dict[str, dict[int, Run]] = {}
    for run in found:
        config = run[0]
        rule = config["quant"]["ste"]
        own = chosen(TABLE, rule, SCALE)
        if _is_compared(config) and float(config["optim"]["lr"]) == own:
            of_rule = by_rule.setdefault(rule, {})
            assert config["seed"] not in of_rule, f"two runs of {rule}, seed {config['seed']}"
            of_rule[config["seed"]] = run
    choosing = {line.seed for line in lines_at(TABLE, SCALE)}
    seeds = set[int].intersection(*map(set, by_rule.values())) - choosing if by_rule else set()
    if not seeds or REFERENCE not in by_rule:
        return "No records yet.\n"
    lines = []
    for rule, runs_of in by_rule.items():
        norms = [(runs_of[seed][0], runs_of[seed][2]) for seed in seeds]
        clipped = [
            fmean(norm >= config["trainer"]["gradient_clip_val"] for norm in of_run)
            for config, of_run in norms
        ]
        shown = [f"`{rule}`", f"{norms[0][0]['optim']['lr']:g}", str(len(seeds))]
        for mean in ("running", "token"):
            ours, theirs = (
                {seed: perplexities(of[seed][1])[mean] for seed in seeds}
                for of in (runs_of, by_rule[REFERENCE])
            )
            shown += [digits.values(ours.values()), "" if rule == REFERENCE else _gap(ours, theirs)]
        first = fmean(perplexities(runs_of[seed][1])["running"] for seed in seeds)
        lines.append((first, [*shown, _range(clipped)]))
    less = f"less `{REFERENCE}`'s (95% interval)"
    head = ["rule", "rate", "seeds", "running mean", less, "token's mean", less]
    return table([*head, "every step clipped"], [line for _, line in sorted(lines)])


def _is_compared(config: dict[str, Any]) -> bool:
    """Whether a run has the settings of the table's rows: α warm after a tenth of its steps."""
    choices, norm, steps = config["choices"], config["norm"], config["trainer"]["max_steps"]
    return bool(
        (choices["preset"], choices["scale"]) == (PRESET, SCALE)
        and (choices["norm"], choices["ffn"]) == (NORM, FFN)
        and norm["callbacks"]["qdyt"]["warmup_steps"] * 10 == steps
        and not norm.get("running_from")
    )


def _gap(values: dict[int, float], others: dict[int, float]) -> str:
    gap = paired(values, others)
    assert gap is not None
    return digits.difference(gap)


def _range(shares: list[float]) -> str:
    low, high = min(shares), max(shares)
    return f"{low:.0%}" if f"{low:.0%}" == f"{high:.0%}" else f"{low:.0%} to {high:.0%}"
