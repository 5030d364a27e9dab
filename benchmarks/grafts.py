"""docs/results.md: what TPTT's fifteen variants give beside their controls, from the report.

The paper prints curves and no number of this table, so the rows without a memory are the measure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from benchmarks.markdown import table
from benchmarks.results_page import report
from benchmarks.stored import Pair, records
from chimera.paths import EXPERIMENTS
from chimera.report import digits
from chimera.report.stats import corrected, paired, spread

#: The table, and its titles of the rows that no run of it trains.
TABLE, UNTRAINED = "tptt/variants", {"base": "the start model", "unigram": "a unigram model"}
#: The row that trains the projections in place of LoRA, and the same without its memory.
KEPT, KEPT_ALONE = "derivative_n2_projections", "projections_only"
#: Start of the names of the table's records.
RECORDS = "instruct-stories260k-"
#: Learning rate of all rows of the report, and the seed whose runs were trained at others, too.
RATE, RATES_SEED = 5e-4, 4
#: Scores of a constant answer: a letter has a fourth of the questions; PQEM adds those of gold «A».
LETTER, LETTER_PQEM = 0.25, 0.5


def grafts() -> str:
    """Sentences on the variants."""
    runs = list(records(RECORDS))
    return page(EXPERIMENTS) + by_rate(runs) + answers(runs)


def page(folder: Path) -> str:
    """The sentences for reports below a folder; «No report yet.» without two seeds of a variant."""
    found = report(TABLE, folder)
    if found is None:
        return "No report yet.\n"
    assert found.table.reference is not None
    rows = {row["row"]: found.values(row) for row in found.done}
    alone, projections = (rows.pop(name, {}) for name in (found.table.reference, KEPT_ALONE))
    gaps = {name: paired(values, alone) for name, values in rows.items()}
    tested = dict(zip(gaps, corrected(list(gaps.values())), strict=True))
    known = {name: gap for name, gap in tested.items() if gap is not None and gap.interval}
    reference = spread(list(alone.values()))
    if not known or reference is None:
        return "No report yet.\n"
    first, last = (choose(known, key=lambda name: known[name].mean) for choose in (min, max))
    below, above = (
        sum(gap.significant and sign * gap.mean > 0 for gap in known.values()) for sign in (-1, 1)
    )
    beside = [
        f"{words} has {digits.number(float(row['mean']))}"
        for name, words in UNTRAINED.items()
        for row in found.rows
        if row["row"] == name
    ]
    return (
        f"At `{found.scale}` LoRA alone ends at {digits.spread(reference)} nats a token"
        f" ({', '.join(beside) or 'no baseline'}). Of {len(known)} variants with a memory {below}"
        f" end significantly below it and {above} significantly above ({reference.n} seeds, paired,"
        f" Holm's correction). The lowest is `{first}`, {digits.difference(known[first])}, the"
        f" highest `{last}`, {digits.difference(known[last])} ([report]({found.link})).\n"
        + _kept(rows.get(KEPT, {}), projections)
    )


def _kept(values: Mapping[int, float], alone: Mapping[int, float]) -> str:
    """A sentence on the row LoRA- and its control, from their losses by seed."""
    gap, control = paired(values, alone), spread(list(alone.values()))
    if gap is None or control is None or gap.interval is None:
        return ""
    return (
        f"\nThe projections trained without a memory (`{KEPT_ALONE}`) end at"
        f" {digits.spread(control)}; the memory of `{KEPT}` adds {digits.difference(gap)} to that,"
        " by the interval of this pair alone.\n"
    )


def by_rate(pairs: Sequence[Pair]) -> str:
    """A line for each row that was trained at several rates, a column for each; one seed."""
    tried: dict[str, dict[float, float]] = {}
    for config, record in pairs:
        if config["seed"] == RATES_SEED:
            line = tried.setdefault(config["table"]["row"], {})
            line[float(config["optim"]["lr"])] = float(record["metrics"]["val/loss"])
    losses = {row: line for row, line in tried.items() if len(line) > 1}
    if not losses:
        return ""
    rates = sorted({rate for line in losses.values() for rate in line})
    head = ["row", *(f"rate {rate:g}" for rate in rates)]
    body = [
        [
            f"`{row}`",
            *(digits.number(line[rate], 4) if rate in line else "–" for rate in rates),
        ]
        for row, line in sorted(losses.items(), key=lambda item: min(item[1].values()))
    ]
    return f"\nLoss by learning rate, on seed {RATES_SEED} of the report:\n\n" + table(head, body)


def answers(pairs: Iterable[Pair]) -> str:
    """Sentences on the table's questions, from the configuration and run.json of its runs."""
    alone: list[float] = []
    with_memory: list[float] = []
    kept: list[float] = []
    for config, record in pairs:
        if float(config["optim"]["lr"]) != RATE:
            continue
        metrics, adapter = record["metrics"], config["adapter"]
        (with_memory if adapter["mag_weight"] else alone).append(metrics["mmlu/pqem"])
        kept.append(metrics["mmlu/pqem_articles_kept"])
    if not alone or not with_memory:
        return ""
    return (
        f"\nOf the questions that the runs answer at the end, PQEM is {min(alone):.2f} to"
        f" {max(alone):.2f} without a memory and {min(with_memory):.2f} to {max(with_memory):.2f}"
        " with one. But PQEM drops articles, and so counts each question whose answer is «A»"
        f" as right whatever was said: always «B» has {LETTER_PQEM:.2f}. Where «A» stays a letter,"
        f" the highest of {len(kept)} runs has {max(kept):.2f}"
        f" and a constant letter {LETTER:.2f}.\n"
    )
