"""docs/results.md: training speed of attention variants and of TITAN's parts, as ratios.

Tokens a second of a row, divided by those of the table's reference row, from the committed reports.
The unit of a paper's number is its machine's, so only ratios can stand beside each other.
"""

from __future__ import annotations

import math
from pathlib import Path

from benchmarks.markdown import grid
from benchmarks.results_page import report
from chimera.paths import EXPERIMENTS
from chimera.report.stats import paired

#: Tables whose metric is tokens a second.
TABLES = ("saidl/hardware", "titan/efficiency")


def speed() -> str:
    """A table for each of `TABLES` that has a report."""
    return "\n".join(text for table in TABLES if (text := page(table, EXPERIMENTS)))


def page(table: str, folder: Path) -> str:
    """Ratios of a table's rows from the reports below a folder; empty without one."""
    found = report(table, folder)
    rows = {row["row"]: row for row in found.done} if found else {}
    if found is None or found.table.reference not in rows:
        return ""
    reference = rows[found.table.reference]
    logs = {seed: math.log(value) for seed, value in found.values(reference).items()}
    printed = reference["published"]
    head = ["row", *(["the paper"] if printed else []), "here, 95 % interval"]
    lines = [head, ["---", *["---:"] * (len(head) - 1)]]
    for name, row in rows.items():
        if name == found.table.reference:
            continue
        gap = paired({seed: math.log(value) for seed, value in found.values(row).items()}, logs)
        if gap is None or gap.interval is None:
            continue
        low, high = (math.exp(end) for end in gap.interval)
        shown = f"{math.exp(gap.mean):.2f} × ({low:.2f} to {high:.2f})"
        published = row["published"] and f"{float(row['published']) / float(printed):.1f} ×"
        lines.append([f"`{name}`", *([published or "–"] if printed else []), shown])
    return (
        f"[{found.table.title}]({found.link}), {found.table.metric}, divided by that of"
        f" `{found.table.reference}`:\n\n{grid(lines)}"
    )
