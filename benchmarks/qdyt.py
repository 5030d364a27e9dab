"""docs/results.md: what decides QDyT's place, from the records of `bitnet_qdyt/norms` in `store/`.

The warm-up of α and the mean at inference are settings, and move QDyT's perplexity by more than it
is apart from LayerNorm's.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from benchmarks.markdown import grid
from benchmarks.stored import Pair, records
from chimera.config.row_learning_rates import lines_at
from chimera.report import digits
from chimera.report.stats import paired, spread

#: Start of the names of the table's records, the scale of those that are compared, and the table.
RECORDS, SCALE, TABLE = "mlm-attention-hbit-", "medium", "bitnet_qdyt/norms"

#: Preset, gradient rule of the weights and feed-forward layer of its rows.
PRESET, ENCODER = "bitnet_qdyt_base", ("lsq", "swiglu")


@dataclass(frozen=True)
class Kind:
    """Runs of one norm.

    Args:
        norm: its name.
        warm: steps in which α warms up, if it does.
        settled: share of the steps from which the running mean is trained with, if ever.
        rate: learning rate.
    """

    norm: str
    warm: int | None
    settled: float | None
    rate: float

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
    """Validation perplexity by kind, rule of the mean and seed; without seeds that chose rates."""
    choosing = {line.seed for line in lines_at(TABLE, SCALE)}
    found: dict[Kind, dict[str, dict[int, float]]] = {}
    for config, record in pairs:
        choices = config["choices"]
        if (choices["preset"], choices["scale"]) != (PRESET, SCALE) or config["seed"] in choosing:
            continue  # of a larger encoder, or of another scale
        if (config["quant"]["ste"], choices["ffn"]) != ENCODER:
            continue  # of the tables of gradient rules and of feed-forward layers
        for rule, value in perplexities(record).items():
            values = found.setdefault(kind(config), {}).setdefault(rule, {})
            assert config["seed"] not in values, (
                f"two runs of {kind(config)}, seed {config['seed']}"
            )
            values[config["seed"]] = value
    return found


def kind(config: dict[str, Any]) -> Kind:
    """What a run's norm is."""
    norm, rate = config["norm"], float(config["optim"]["lr"])
    schedule = (norm.get("callbacks") or {}).get("qdyt")
    if schedule is None:
        return Kind(config["choices"]["norm"], None, None, rate)
    warm = min(schedule["warmup_steps"], config["trainer"]["max_steps"] // 2)
    return Kind(config["choices"]["norm"], warm, norm.get("running_from"), rate)


def perplexities(record: dict[str, Any]) -> dict[str, float]:
    """Perplexity by rule of the mean; of a norm without a mean one, by no rule."""
    own = float(record["metrics"]["val/perplexity"])
    other = record.get("other_rules", {}).get("token_mean")
    return {"": own} if other is None else {"running": own, "token": other["val/perplexity"]}


def qdyt() -> str:
    """A line for each kind, with its difference to LayerNorm at its best rate, seed by seed."""
    return page(records(RECORDS))


def page(pairs: Iterable[Pair]) -> str:
    """The table of configurations with their records."""
    found = runs(pairs)
    layernorm = [v[""] for k, v in found.items() if k.norm == "layernorm"]
    reference = min(layernorm, key=lambda values: fmean(values.values()), default={})
    head = ["norm", "rate", "mean at inference", "seeds", "val/perplexity"]
    lines = [[*head, "less LayerNorm's (95% interval)"], ["---"] * 6]
    rows = []
    for each, by_rule in found.items():
        for rule, values in by_rule.items():
            mean = spread(list(values.values()))
            gap = None if values is reference else paired(values, reference)
            assert mean is not None
            apart = "" if gap is None else digits.difference(gap)
            about = [each.title, f"{each.rate:g}", rule or "–", str(len(values))]
            shown = [*about, digits.spread(mean), apart]
            rows.append((mean.mean, shown))
    lines += [shown for _, shown in sorted(rows, key=lambda row: row[0])]
    return grid(lines)
