"""docs/results.md: scores on TITAN's Spanish tasks, beside what needs no network, by the report."""

from __future__ import annotations

from pathlib import Path

from benchmarks.markdown import grid
from benchmarks.results_page import report
from chimera.paths import EXPERIMENTS
from chimera.report import digits

TABLE = "titan/spanish"


def spanish() -> str:
    """The scores of all rows that were trained."""
    return page(EXPERIMENTS) or "No report yet.\n"


def page(folder: Path) -> str:
    """Scores and trivial predictors of the report below a folder; empty without one."""
    found = report(TABLE, folder)
    if found is None:
        return ""
    lines = [["row", found.table.metric, "seeds"], ["---", "---:", "---:"]]
    for row in found.done:
        values = list(found.values(row).values())
        lines.append([f"{row['title']} (`{row['row']}`)", digits.values(values), str(len(values))])
    trivial = [row for row in found.rows if row["state"] == "baseline"]
    for row in sorted(trivial, key=lambda row: -float(row["mean"])):
        lines.append([f"*{row['title']}*", digits.number(float(row["mean"]), 3), ""])
    return f"[{found.table.title}]({found.link}), {found.scale}:\n\n{grid(lines)}"
