"""Write a report's files: Markdown, CSV, LaTeX, pictures; print its table in a terminal."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from chimera.config.tables import Table
from chimera.paths import home
from chimera.report import curves, markdown, metric_grid
from chimera.report.bars import bars
from chimera.report.baselines import baselines
from chimera.report.escape import latex
from chimera.report.results import Configs
from chimera.report.style import save
from chimera.report.summary import FACTS, Line, Summary, summarise
from chimera.rundir.safe_io import make_folder, write_atomic

HEAD = ("row", "title", "published", "unit", "mean", "std", "n", "seeds", "values", "state")
DIFFERENCE = ("difference", "difference_std", "difference_n", "p", "p_corrected", "low", "high")


def report_folder(summary: Summary) -> Path:
    """Default folder of a report; git ignores it."""
    return home() / "reports" / summary.table.path / summary.scale


def write(
    table: Table | str,
    overrides: list[str],
    seeds: list[int],
    out: Path | None = None,
    configs: Configs | None = None,
    forms: Sequence[str] = ("png",),
) -> Summary:
    """Write report.md, .csv, .tex, and the figures report and curves.

    Writes the figure `budget` too if FLOPs are known, and `lengths` if runs have metrics by length
    or layer.

    Args:
        table: the table or its name.
        overrides: overrides of all its jobs, such as `scale=small`.
        seeds: seeds of its runs.
        out: folder of the files; None: `reports/<paper>/<table>/<scale>/`.
        configs: configurations that are composed already, by row and seed.
        forms: of the figures: png, svg, pdf.

    Raises:
        UserError: the table does not exist, or a row does not compose.
    """
    summary = summarise(table, overrides, seeds, configs)
    folder = out or report_folder(summary)
    make_folder(folder, of=folder, key="out")
    write_atomic(folder / "report.md", markdown.report(summary))
    write_atomic(folder / "report.csv", comma_separated(summary))
    write_atomic(folder / "report.tex", booktabs(summary))
    save(bars(summary), folder / "report.png", forms)
    save(curves.curves(summary), folder / "curves.png", forms)
    if curves.costs_known(summary):
        save(curves.budget(summary), folder / "budget.png", forms)
    if lengths := metric_grid.picture(summary):
        save(lengths, folder / "lengths.png", forms)
    return summary


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
    head, body = markdown.rows(summary)
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


def show(summary: Summary, console: Console) -> None:
    """Print the table in a terminal; rows have their short names."""
    head, body = markdown.rows(summary)
    title = Text(f"{summary.table.title}, scale={summary.scale}")
    grid = Grid(title=title, title_justify="left")
    for column in head:
        if not column.startswith("published "):
            grid.add_column(
                Text(column), justify="left" if column == "row" else "right", no_wrap=True
            )
    names = [*(line.name for line in summary.lines), *(b.name for b in baselines(summary))]
    for name, row in zip(names, body, strict=True):
        grid.add_row(Text(name), *map(Text, row[1 : len(grid.columns)]))
    if not console.is_terminal:
        console = Console(file=console.file, width=160)
    console.print(grid)
    if warning := summary.other_text:
        console.print(warning, highlight=False, soft_wrap=True, markup=False)
