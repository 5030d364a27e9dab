"""docs/results.md: one table's rows at several learning rates, on the report's seeds and others.

A rate that is best on the seeds that choose it may be one at which another seed falls apart.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from benchmarks.markdown import grid
from benchmarks.stored import Pair, records
from chimera.config.rates import best, lines_at
from chimera.config.tables import load
from chimera.report.digits import number

TABLE, SCALE, STEPS = "saidl/hybrids", "medium", 3000


def edges() -> str:
    """A line for each row and rate that has runs of the report's seeds, of rows with two rates."""
    return page(records("causal_lm-"))


def page(pairs: Iterable[Pair]) -> str:
    """The table of these records; runs of other settings are left out."""
    values = defaultdict[str, dict[float, dict[int, float]]](lambda: defaultdict(dict))
    for config, record in pairs:
        about = config["table"]["name"], config["choices"]["scale"], config["trainer"]["max_steps"]
        if about == (TABLE, SCALE, STEPS):
            found = values[config["table"]["row"]][float(config["optim"]["lr"])]
            found[config["seed"]] = float(record["metrics"]["val/perplexity"])
    tried = lines_at(TABLE, SCALE)
    choosing, chosen = {line.seed for line in tried}, best(tried, "lower")
    lines = [["row", "rate", "seeds that choose it", "the report's seeds"], ["---"] * 4]
    for row in (row.name for row in load(TABLE).rows):
        rates = {r: found for r, found in values[row].items() if found.keys() - choosing}
        if len(rates) < 2:
            continue
        for rate, found in sorted(rates.items()):
            named = f"**{rate:g}**" if rate == chosen.get(row) else f"{rate:g}"
            at = {seed: number(value, 4) for seed, value in sorted(found.items())}
            others = ", ".join(at[seed] for seed in at if seed in choosing)
            ours = ", ".join(at[seed] for seed in at if seed not in choosing)
            lines.append([f"`{row}`", named, others, ours])
    return grid(lines)
