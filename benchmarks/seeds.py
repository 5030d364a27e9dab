"""docs/scales.md: how far seeds are apart, from the records of masked models in `store/`.

A difference between two rows is only worth reading beside this. Runs that differ in their seed
alone are one line; the spread is that of the loss, since a ratio of perplexities is a difference
of losses.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from statistics import stdev
from typing import Any

from benchmarks.markdown import grid
from benchmarks.stored import Pair, records
from chimera.dotted import flatten
from chimera.report.digits import number
from chimera.rundir.identity import identity_settings

#: Start of the names of records that are compared, and the fewest seeds of a line.
RECORDS, FEWEST = "mlm-", 3
#: Settings that differ from seed to seed of one line, besides those that take over the run's seed.
OWN = ("seed", "data.seed")


def seeds() -> str:
    """A line for each setting that has so many seeds, the smallest spread first."""
    return page(records(RECORDS))


def page(pairs: Iterable[Pair]) -> str:
    """The table of configurations with their records; runs that only measure time are left out."""
    lines: dict[tuple[tuple[str, str], ...], dict[int, tuple[float, dict[str, Any]]]] = {}
    for config, record in pairs:
        if not (config.get("table") or {}).get("metric", "val/").startswith("val/"):
            continue
        perplexity = float(record["metrics"]["val/perplexity"])
        lines.setdefault(_line(config), {})[config["seed"]] = perplexity, config
    rows, batches = [], []
    for by_seed in lines.values():
        if len(by_seed) >= FEWEST:
            values = [by_seed[seed][0] for seed in sorted(by_seed)]
            config = by_seed[min(by_seed)][1]
            rows.append((stdev(map(math.log, values)), _shown(config, values)))
            batches.append(config["trainer"]["limit_val_batches"])
    settings = Counter(tuple(shown[:-1]) for _, shown in rows)
    for (_, shown), validated in zip(rows, batches, strict=True):
        if settings[tuple(shown[:-1])] > 1:
            shown[0] += f", validated on {validated} batches"
    rows.sort(key=lambda row: row[0])
    seed = "validation perplexity of each seed"
    head = ["row of a table, or parts", "scale", "rate", "steps", seed, "loss, s. d."]
    body = [[*shown, f"{spread:.3f}"] for spread, shown in rows]
    table = [head, ["---"] * len(head), *body]
    return grid(table)


def _line(config: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    kept = {
        key: str(value)
        for key, value in flatten(identity_settings(config)).items()
        if key not in OWN and not (key.endswith(".seed") and value == config["seed"])
    }
    return tuple(sorted(kept.items()))


def _shown(config: dict[str, Any], values: list[float]) -> list[str]:
    table, choices = config.get("table") or {}, config["choices"]
    parts = (f"{group}={choices[group]}" for group in ("mixer", "quant", "norm", "position"))
    name = f"`{table['name']}` `{table['row']}`" if table.get("row") else f"`{' '.join(parts)}`"
    warm = flatten(config).get("norm.callbacks.qdyt.warmup_steps")
    if warm is not None:
        name += f", α warm after {warm} steps"
    shown = ", ".join(number(value, 3) for value in values)
    steps = str(config["trainer"]["max_steps"])
    return [name, choices["scale"], f"{config['optim']['lr']:g}", steps, shown]
