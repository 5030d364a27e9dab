"""Write a report's files, and print its table in a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from chimera.config.tables import Table
from chimera.paths import home
from chimera.report import curves, export, metric_grid, text
from chimera.report.bars import bars
from chimera.report.baselines import baselines
from chimera.report.cells import Configs
from chimera.report.settings import other_text
from chimera.report.style import save
from chimera.report.summary import Summary, summarise
from chimera.rundir.safe_io import make_folder, write_atomic


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
    write_atomic(folder / "report.md", text.report(summary))
    write_atomic(folder / "report.csv", export.comma_separated(summary))
    write_atomic(folder / "report.tex", export.booktabs(summary))
    save(bars(summary), folder / "report.png", forms)
    save(curves.curves(summary), folder / "curves.png", forms)
    if curves.costs_known(summary):
        save(curves.budget(summary), folder / "budget.png", forms)
    if lengths := metric_grid.picture(summary):
        save(lengths, folder / "lengths.png", forms)
    return summary


def show(summary: Summary, console: Console) -> None:
    """Print the table in a terminal; rows have their short names."""
    head, body = text.rows(summary)
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
    if warning := other_text(summary):
        console.print(warning, highlight=False, soft_wrap=True, markup=False)
