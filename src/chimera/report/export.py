"""report.csv, a line per row for other programs, and report.tex, a booktabs table for a paper."""

from __future__ import annotations

import csv
import io

from chimera.report import text
from chimera.report.summary import FACTS, Line, Summary

HEAD = ("row", "title", "published", "unit", "mean", "std", "n", "seeds", "values", "state")
DIFFERENCE = ("difference", "difference_std", "difference_n", "p")


def comma_separated(summary: Summary) -> str:
    """Full precision; a list in one field is separated by semicolons."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    others = [f"published {column}" for column in summary.columns]
    writer.writerow([*HEAD, *DIFFERENCE, *FACTS, *others])
    for line in summary.lines:
        writer.writerow(["" if field is None else field for field in _fields(summary, line)])
    return out.getvalue()


def _fields(summary: Summary, line: Line) -> list[object]:
    mine, difference = line.ours, line.difference
    return [
        line.name,
        line.title,
        line.published and line.published.value,
        line.published and line.published.unit,
        mine and mine.mean,
        mine and mine.std,
        mine.n if mine else 0,
        ";".join(map(str, line.values)),
        ";".join(map(repr, line.values.values())),
        ";".join(cell.state for cell in line.cells),
        *(
            [difference.mean, difference.std, difference.n, difference.p]
            if difference
            else [""] * 4
        ),
        *line.facts.values(),
        *(line.others[c].value if c in line.others else None for c in summary.columns),
    ]


def latex(summary: Summary) -> str:
    """A table environment; needs \\usepackage{booktabs}."""
    head, body = text.rows(summary)
    table = summary.table
    caption = (
        f"{table.title}. Ours at scale {summary.scale}, mean and standard deviation over"
        f" {len(summary.seeds)} seeds; {table.metric}, {table.better} is better; differences to"
        f" {table.reference} with a paired t-test."
    )
    lines = [
        "\\begin{table}",
        "\\centering",
        f"\\caption{{{_escaped(caption)}}}",
        f"\\label{{tab:{table.paper}-{table.name}}}",
        f"\\begin{{tabular}}{{l{'r' * (len(head) - 1)}}}",
        "\\toprule",
        f"{' & '.join(map(_escaped, head))} \\\\",
        "\\midrule",
        *(f"{' & '.join(map(_escaped, [_plain(row[0]), *row[1:]]))} \\\\" for row in body),
        "\\bottomrule",
        "\\end{tabular}",
        "\\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _plain(row: str) -> str:
    return row.replace("`", "")


#: What LaTeX reads otherwise, the backslash first.
SPECIAL = {
    "\\": "\\textbackslash{}",
    **{c: f"\\{c}" for c in "{}&%$#_"},
    "~": "\\textasciitilde{}",
    "^": "\\textasciicircum{}",
    "<": "$<$",
    ">": "$>$",
    "±": "$\\pm$",
    "×": "$\\times$",
    "²": "$^2$",
    "α": "$\\alpha$",
    "γ": "$\\gamma$",
    "−": "$-$",
}


def _escaped(words: str) -> str:
    """Letter by letter, so that what an escape writes is not escaped again."""
    return "".join(SPECIAL.get(letter, letter) for letter in words)
