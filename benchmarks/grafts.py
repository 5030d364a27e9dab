"""docs/results.md: what TPTT's fifteen variants give beside LoRA alone, from the committed report.

The paper prints curves and no number of this table, so the row without a memory is the measure.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.results_page import report
from chimera.paths import EXPERIMENTS
from chimera.report import digits
from chimera.report.stats import Difference, corrected, paired, spread

#: The table, and its titles of the rows that no run of it trains.
TABLE, UNTRAINED = "tptt/variants", {"base": "the start model", "unigram": "a unigram model"}


def grafts() -> str:
    """Sentences on the variants."""
    return page(EXPERIMENTS)


def page(folder: Path) -> str:
    """The sentences for reports below a folder; «No report yet.» without two seeds of a variant."""
    found = report(TABLE, folder)
    if found is None:
        return "No report yet.\n"
    assert found.table.reference is not None
    rows = {row["row"]: found.values(row) for row in found.done}
    alone = rows.pop(found.table.reference, {})
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
        f" Holm's correction). The lowest is `{first}`, {_gap(known[first])}, the highest"
        f" `{last}`, {_gap(known[last])} ([report]({found.link})).\n"
    )


def _gap(gap: Difference) -> str:
    return f"{digits.spread(gap, sign=True)} ({digits.interval(gap)})"
