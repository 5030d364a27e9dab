"""docs/results.md: scores on a Spanish task, beside what needs no network, by the report."""

from __future__ import annotations

from pathlib import Path

from benchmarks.markdown import grid
from benchmarks.results_page import report
from chimera.paths import EXPERIMENTS
from chimera.report import digits
from chimera.report.stats import corrected, paired

TABLE, REFERENCE = "titan/spanish", "transformer_stsb"


def spanish() -> str:
    """The scores of all rows that were trained."""
    return page(EXPERIMENTS) or "No report yet.\n"


def page(folder: Path) -> str:
    """Scores and trivial predictors of the report below a folder; empty without one."""
    found = report(TABLE, folder)
    if found is None:
        return ""
    scores = {row["row"]: found.values(row) for row in found.done}
    head = ["row", found.table.metric, "seeds", f"less `{REFERENCE}`'s (95 % interval)"]
    lines = [head, ["---", "---:", "---:", "---:"]]
    reference = scores.pop(REFERENCE, {})
    tested = corrected([paired(values, reference) for values in scores.values()])
    gaps = dict(zip(scores, tested, strict=True))
    for row in found.done:
        values, gap = found.values(row).values(), gaps.get(row["row"])
        less = f"{digits.difference(gap)}, {digits.p_equals(gap)}" if gap else ""
        name = f"{row['title']} (`{row['row']}`)"
        lines.append([name, digits.values(values), str(len(values)), less])
    trivial = [row for row in found.rows if row["state"] == "baseline"]
    for row in sorted(trivial, key=lambda row: -float(row["mean"])):
        lines.append([f"*{row['title']}*", digits.number(float(row["mean"]), 3), "", ""])
    return f"[{found.table.title}]({found.link}), {found.scale}:\n\n{grid(lines)}"
