"""Write a report's files, and show its table in a terminal."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.table import Table as Grid

from chimera.config.tables import Table
from chimera.paths import ROOT
from chimera.report import export, figures, measured, text
from chimera.report.summary import Summary, summarise
from chimera.rundir.atomic import write_atomic


def report_folder(summary: Summary) -> Path:
    """Where a report goes unless told otherwise; git ignores it."""
    return ROOT / "reports" / summary.table.path / summary.scale


def write(
    table: Table | str, words: list[str], seeds: list[int], out: Path | None = None
) -> Summary:
    """report.md, .csv, .tex, .png and curves.png of a table as it stands now.

    Args:
        table: itself or its name.
        words: overrides that all its jobs have, such as `scale=small`.
        seeds: of its runs.
        out: folder; None takes `reports/<paper>/<table>/<scale>/`.
    """
    summary = summarise(table, words, seeds)
    folder = out or report_folder(summary)
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(folder / "report.md", text.markdown(summary))
    write_atomic(folder / "report.csv", export.comma_separated(summary))
    write_atomic(folder / "report.tex", export.latex(summary))
    (folder / "report.png").write_bytes(figures.png(figures.bars(summary)))
    (folder / "curves.png").write_bytes(figures.png(figures.curves(summary)))
    if lengths := measured.figure(summary):
        (folder / "lengths.png").write_bytes(figures.png(lengths))
    return summary


def show(summary: Summary, console: Console) -> None:
    """The table in a terminal, rows by their short names."""
    head, body = text.rows(summary)
    grid = Grid(title=f"{summary.table.title}, scale={summary.scale}", title_justify="left")
    for column in head:
        if not column.startswith("published "):
            grid.add_column(column, justify="left" if column == "row" else "right", no_wrap=True)
    for line, row in zip(summary.lines, body, strict=True):
        grid.add_row(line.name, *row[1 : len(grid.columns)])
    if not console.is_terminal:
        console = Console(file=console.file, width=160)
    console.print(grid)
