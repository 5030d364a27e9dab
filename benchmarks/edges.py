"""docs/results.md: rows of tables at several learning rates, on the report's seeds and on others.

A rate that is best on the seeds that choose it may be one at which another seed falls apart.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from benchmarks.markdown import grid
from benchmarks.results_page import report
from benchmarks.stored import Pair, records
from chimera.config.row_learning_rates import best, lines_at
from chimera.config.tables import load
from chimera.report.digits import number

SCALE = "medium"
#: Tables with such rows, and the steps of their reports.
STEPS = {
    "saidl/attention": 1000,
    "saidl/hybrids": 3000,
    "saidl/positions": 3000,
    "titan/ablations": 1000,
}


def edges() -> str:
    """A table of lines for each of `STEPS` that has one."""
    pairs = list(records("causal_lm-")) + list(records("mlm-"))
    shown = ((table, page(pairs, table)) for table in STEPS)
    return "\n".join(
        f"`{table}`, {load(table).metric}:\n\n{lines}" for table, lines in shown if lines
    )


def page(pairs: Iterable[Pair], table: str) -> str:
    """A line for each row and rate that has runs of the report's seeds, of rows with two such.

    Empty without such a row. Runs of other settings are left out, and those recorded as another
    table's rows.
    """
    about, metric = (table, SCALE, STEPS[table]), load(table).metric
    values = defaultdict[str, dict[float, dict[int, float]]](lambda: defaultdict(dict))
    for config, record in pairs:
        of, steps = config.get("table") or {}, config["trainer"]["max_steps"]
        if (of.get("name"), config["choices"]["scale"], steps) == about:
            found = values[of["row"]][float(config["optim"]["lr"])]
            found[config["seed"]] = float(record["metrics"][metric])
    committed = report(table)
    assert committed is not None, f"{table} has no committed report"
    reported = {seed for row in committed.done for seed in committed.values(row)}
    chosen = best(lines_at(table, SCALE), load(table).better)
    lines = []
    for row in (row.name for row in load(table).rows):
        rates = {rate: found for rate, found in values[row].items() if found.keys() & reported}
        if len(rates) < 2:
            continue
        for rate, found in sorted(rates.items()):
            named = f"**{rate:g}**" if rate == chosen.get(row) else f"{rate:g}"
            at = {seed: number(value, 4) for seed, value in sorted(found.items())}
            others = ", ".join(at[seed] for seed in at if seed not in reported)
            ours = ", ".join(at[seed] for seed in at if seed in reported)
            lines.append([f"`{row}`", named, others, ours])
    head = ["row", "rate", "seeds that choose it", "the report's seeds"]
    return grid([head, ["---"] * len(head), *lines]) if lines else ""
