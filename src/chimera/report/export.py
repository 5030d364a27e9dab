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
    writer = csv.writer(out, lineterminator="\n")
    published = [f"published {column}" for column in summary.columns]
    columns = [*HEAD, *DIFFERENCE, *FACTS, *published, "numerics"]
    writer.writerow(columns)
    for line in summary.lines:
        writer.writerow(["" if field is None else field for field in _fields(summary, line)])
    for baseline in baselines(summary):
        fields: dict[str, object] = {"row": baseline.name, "title": baseline.title}
        fields |= {"mean": baseline.value.mean, "std": baseline.value.std, "n": 0}
        fields |= {"state": "baseline", "numerics": summary.numerics}
        writer.writerow(["" if fields.get(c) is None else fields[c] for c in columns])
    return out.getvalue()


def _fields(summary: Summary, line: Line) -> list[object]:
    ours, difference = line.ours, line.difference
    return [
        line.name,
        line.title,
        line.published and line.published.value,
        line.published and line.published.unit,
        ours and ours.mean,
        ours and ours.std,
        ours.n if ours else 0,
        ";".join(map(str, line.values)),
        ";".join(map(repr, line.values.values())),
        ";".join(cell.state for cell in line.cells),
        *(
            [
                *(difference.mean, difference.std, difference.n),
                *(difference.p, difference.corrected, *(difference.interval or (None, None))),
            ]
            if difference
            else [""] * len(DIFFERENCE)
        ),
        *line.facts.values(),
        *(
            line.also_published[column].value if column in line.also_published else None
            for column in summary.columns
        ),
        summary.numerics,
    ]


def booktabs(summary: Summary) -> str:
    """Contents of report.tex: a table environment; needs `\\usepackage{booktabs}`."""
    head, body = text.rows(summary)
    table = summary.table
    tested = "" if table.counts else " with a paired t-test, p corrected by Holm's method"
    whole = table.whole
    part = f" {len(table.rows)} of the table's {len(whole.rows)} rows." if whole else ""
    caption = (
        f"{table.title}. Ours at scale {summary.scale}, mean and standard deviation over"
        f" {len(summary.seeds)} seeds; {table.metric}, {table.better} is better; differences to"
        f" {table.reference}{tested}; numerics {summary.numerics}.{part}"
    )
    lines = [
        "\\begin{table}",
        "\\centering",
        f"\\caption{{{latex(caption)}}}",
        f"\\label{{tab:{_label(table.path)}}}",
        f"\\begin{{tabular}}{{l{'r' * (len(head) - 1)}}}",
        "\\toprule",
        f"{' & '.join(map(latex, head))} \\\\",
        "\\midrule",
        *(f"{' & '.join(map(latex, row))} \\\\" for row in body),
        "\\bottomrule",
        "\\end{tabular}",
        "\\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _label(path: str) -> str:
    """Make a label for `\\ref` from the characters that LaTeX allows in labels."""
    return re.sub(r"[^A-Za-z0-9_.]+", "-", path)
