"""Write report.csv, for other programs, and report.tex, a booktabs table for a paper."""

from __future__ import annotations

import csv
import io
import re

from chimera.report import text
from chimera.report.baselines import baselines
from chimera.report.escape import latex
from chimera.report.summary import FACTS, Line, Summary

HEAD = ("row", "title", "published", "unit", "mean", "std", "n", "seeds", "values", "state")
DIFFERENCE = ("difference", "difference_std", "difference_n", "p", "p_corrected", "low", "high")


def comma_separated(summary: Summary) -> str:
    """Contents of report.csv: one line per row, full precision, lists joined by semicolons."""
    out = io.StringIO()
    published = [f"published {column}" for column in summary.columns]
    columns = [*HEAD, *DIFFERENCE, *FACTS, *published, "numerics"]
    writer = csv.DictWriter(out, columns, lineterminator="\n")
    writer.writeheader()
    lines = [_fields(line) for line in summary.lines]
    for b in baselines(summary):
        named: dict[str, object] = {"row": b.name, "title": b.title, "state": "baseline"}
        lines.append(named | {"mean": b.value.mean, "std": b.value.std, "n": 0})
    for fields in lines:
        writer.writerow(fields | {"numerics": summary.numerics})
    return out.getvalue()


def _fields(line: Line) -> dict[str, object]:
    fields: dict[str, object] = {
        "row": line.name,
        "title": line.title,
        "n": len(line.values),
        "seeds": ";".join(map(str, line.values)),
        "values": ";".join(map(repr, line.values.values())),
        "state": ";".join(cell.state for cell in line.cells),
        **line.facts,
        **{f"published {column}": p.value for column, p in line.also_published.items()},
    }
    if line.published:
        fields |= {"published": line.published.value, "unit": line.published.unit}
    if line.ours:
        fields |= {"mean": line.ours.mean, "std": line.ours.std}
    if d := line.difference:
        ends = d.interval or (None, None)
        numbers = (d.mean, d.std, d.n, d.p, d.corrected, *ends)
        fields |= dict(zip(DIFFERENCE, numbers, strict=True))
    return fields


def booktabs(summary: Summary) -> str:
    """Contents of report.tex: a table environment; needs `\\usepackage{booktabs}`."""
    head, body = text.rows(summary)
    table = summary.table
    tested = "" if table.counts else " with a paired t-test, p corrected by Holm's method"
    part = f" {len(table.rows)} of the table's {len(table.whole.rows)} rows." if table.whole else ""
    caption = (
        f"{table.title}. Ours at scale {summary.scale}, mean and standard deviation over"
        f" {len(summary.seeds)} seeds; {table.metric}, {table.better} is better; differences to"
        f" {table.reference}{tested}; numerics {summary.numerics}.{part}"
    )
    first, *others = (f"{' & '.join(map(latex, row))} \\\\" for row in (head, *body))
    lines = [
        "\\begin{table}",
        "\\centering",
        f"\\caption{{{latex(caption)}}}",
        f"\\label{{tab:{re.sub(r'[^A-Za-z0-9_.]+', '-', table.path)}}}",
        f"\\begin{{tabular}}{{l{'r' * (len(head) - 1)}}}",
        "\\toprule",
        first,
        "\\midrule",
        *others,
        "\\bottomrule",
        "\\end{tabular}",
        "\\end{table}",
    ]
    return "\n".join(lines) + "\n"
