"""docs/results.md: what decides QDyT's place, from the records of `bitnet_qdyt/norms` in `store/`.

The warm-up of α and the mean at inference are settings, and move QDyT's perplexity by more than it
is apart from LayerNorm's.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from benchmarks.markdown import grid
from benchmarks.stored import Pair, records
from chimera.report import digits
from chimera.report.stats import paired, spread

#: Start of the names of the table's records, and the scale of those that are compared.
RECORDS, SCALE = "mlm-attention-hbit-", "medium"


@dataclass(frozen=True)
class Kind:
    """Runs of one norm: its name, and the steps of its warm-up and start of settling, if any."""

    norm: str
    warm: int | None
    settled: float | None

    @property
    def title(self) -> str:
        """For readers."""
        if self.warm is None:
            return f"`{self.norm}`"
        more = f", running mean from {self.settled:g} of the steps on" if self.settled else ""
        return f"`{self.norm}`, α warm after {self.warm} steps{more}"


def runs(
    pairs: Iterable[Pair],
) -> dict[Kind, dict[str, dict[int, float]]]:
    """Validation perplexities by kind, rule of the mean and seed."""
    found: dict[Kind, dict[str, dict[int, float]]] = {}
    for config, record in pairs:
        if config["choices"]["scale"] != SCALE:
            continue
        for rule, value in perplexities(record).items():
            found.setdefault(kind(config), {}).setdefault(rule, {})[config["seed"]] = value
    return found


def kind(config: dict[str, Any]) -> Kind:
    """What a run's norm is."""
    norm = config["norm"]
    schedule = (norm.get("callbacks") or {}).get("qdyt")
    if schedule is None:
        return Kind(config["choices"]["norm"], None, None)
    warm = min(schedule["warmup_steps"], config["trainer"]["max_steps"] // 2)
    return Kind(config["choices"]["norm"], warm, norm.get("running_from"))


def perplexities(record: dict[str, Any]) -> dict[str, float]:
    """Perplexity by rule of the mean; of a norm without a mean one, by no rule."""
    own = float(record["metrics"]["val/perplexity"])
    other = record.get("other_rules", {}).get("token_mean")
    return {"": own} if other is None else {"running": own, "token": other["val/perplexity"]}


def qdyt() -> str:
    """A line for each kind, with its difference to LayerNorm seed by seed."""
    return page(records(RECORDS))


def page(pairs: Iterable[Pair]) -> str:
    """The table of configurations with their records."""
    found = runs(pairs)
    reference = next((v[""] for k, v in found.items() if k.norm == "layernorm"), {})
    lines = [["norm", "mean at inference", "val/perplexity", "less LayerNorm's (95% interval)"]]
    lines.append(["---"] * 4)
    rows = []
    for each, by_rule in found.items():
        for rule, values in by_rule.items():
            mean = spread(list(values.values()))
            gap = None if each.norm == "layernorm" else paired(values, reference)
            assert mean is not None
            apart = "" if gap is None else f"{digits.spread(gap, sign=True)}"
            if gap is not None and digits.interval(gap):
                apart += f" ({digits.interval(gap)})"
            shown = [each.title, rule or "–", digits.spread(mean), apart]
            rows.append((mean.mean, shown))
    lines += [shown for _, shown in sorted(rows, key=lambda row: row[0])]
    return grid(lines)
