"""docs/results.md: tables whose rows are read as ratios to one of them, beside the paper's ratios.

A row's value is divided by the reference row's of the same seed, from the committed reports. So
stand tokens a second, whose unit is a paper's machine, and perplexities, whose size is a corpus's.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.markdown import grid
from benchmarks.paired_ratio import ratio
from benchmarks.results_page import report
from chimera.paths import EXPERIMENTS

#: Tables whose metric is tokens a second, and QDYT's main one, whose metric is a perplexity.
SPEED, ENCODERS = ("saidl/hardware", "titan/efficiency"), "bitnet_qdyt/main"


def speed() -> str:
    """A table for each of `SPEED` that has a report."""
    return "\n".join(text for table in SPEED if (text := page(table, EXPERIMENTS)))


def encoders() -> str:
    """The table of ternary encoders beside full precision; «No report yet.» without one."""
    return page(ENCODERS, EXPERIMENTS) or "No report yet.\n"


def page(table: str, folder: Path) -> str:
    """Ratios of a table's rows from the reports below a folder; empty without one."""
    found = report(table, folder)
    rows = {row["row"]: row for row in found.done} if found else {}
    if found is None or found.table.reference not in rows:
        return ""
    reference = rows[found.table.reference]
    printed = reference["published"]
    head = ["row", *(["the paper"] if printed else []), "here, 95 % interval"]
    lines = [head, ["---", *["---:"] * (len(head) - 1)]]
    for name, row in rows.items():
        if name == found.table.reference:
            continue
        here = ratio(found.values(row), found.values(reference))
        if here is None:
            continue
        published = row["published"] and _times(float(row["published"]) / float(printed))
        lines.append([f"`{name}`", *([published or "–"] if printed else []), here.shown])
    return (
        f"[{found.table.title}]({found.link}), {found.table.metric}, divided by that of"
        f" `{found.table.reference}`:\n\n{grid(lines)}"
    )


def _times(ratio: float) -> str:
    """With one decimal from ten on, below with two."""
    return f"{ratio:.{1 if ratio >= 10 else 2}f} ×"
