"""Write a report's files: Markdown, CSV, LaTeX, pictures; print its table in a terminal."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from rich.console import Console

from chimera.config.tables import Table
from chimera.paths import home
from chimera.report import figures, formatting, markdown, rank_figures
from chimera.report.formatting import latex
from chimera.report.style import save
from chimera.report.table_results import FACTS, Configs, Line, TableResults, read_results
from chimera.safe_io import make_folder, write_atomic

HEAD = ("row", "title", "published", "unit", "mean", "std", "n", "seeds", "values", "state")
DIFFERENCE = ("difference", "difference_std", "difference_n", "p", "p_corrected", "low", "high")


def report_folder(results: TableResults) -> Path:
    """Default folder of a report; git ignores it."""
    return home() / "reports" / results.table.path / results.scale


def write(
    table: Table | str,
    overrides: list[str],
    seeds: list[int],
    out: Path | None = None,
    configs: Configs | None = None,
    forms: Sequence[str] = ("png",),
) -> TableResults:
    """Write report.md, .csv, .tex, and its figures.

    Figures other than `report` and `curves` are written if the runs have the numbers: `budget`
    FLOPs, `times` times, `lengths` metrics by length or layer, `ranks` and `gates` adapters.

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
    results = read_results(table, overrides, seeds, configs)
    folder = out or report_folder(results)
    make_folder(folder, of=folder, key="out")
    drawn = {
        "report": figures.bars(results),
        "curves": figures.curves(results),
        "budget": figures.budget(results) if figures.costs_known(results) else None,
        "times": figures.times(results),
        "lengths": figures.lengths(results),
        "ranks": rank_figures.heatmaps(results),
        "gates": rank_figures.history(results),
    }
    pictures = {name: figure for name, figure in drawn.items() if figure is not None}
    write_atomic(folder / "report.md", markdown.report(results, set(pictures)))
    write_atomic(folder / "report.csv", comma_separated(results))
    write_atomic(folder / "report.tex", booktabs(results))
    for name, figure in pictures.items():
        save(figure, folder / f"{name}.png", forms)
    return results


def comma_separated(results: TableResults) -> str:
    """Contents of report.csv: one line per row, full precision, lists joined by semicolons."""
    published = [f"published {column}" for column in results.columns]
    lines = [_fields(line) for line in results.lines]
    for b in results.baselines:
        named: dict[str, object] = {"row": b.name, "title": b.title, "state": "baseline"}
        lines.append(named | {"mean": b.value.mean, "std": b.value.std, "n": 0})
    columns = [*HEAD, *DIFFERENCE, *FACTS, *published]
    frame = pd.DataFrame(lines, columns=columns, dtype=object).assign(numerics=results.numerics)
    return frame.to_csv(index=False, lineterminator="\n")


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


def booktabs(results: TableResults) -> str:
    """Contents of report.tex: a table environment; needs `\\usepackage{booktabs}`."""
    head, body = markdown.rows(results)
    table = results.table
    tested = "" if table.counts else " with a paired t-test, p corrected by Holm's method"
    part = f" {len(table.rows)} of the table's {len(table.whole.rows)} rows." if table.whole else ""
    caption = (
        f"{table.title}. Ours at scale {results.scale}, mean and standard deviation over"
        f" {len(results.seeds)} seeds; {table.metric}, {table.better} is better; differences to"
        f" {table.reference}{tested}; numerics {results.numerics}.{part}"
    )
    label = re.sub(r"[^A-Za-z0-9_.]+", "-", table.path)
    frame = pd.DataFrame([map(latex, row) for row in body], columns=[*map(latex, head)])
    return frame.style.hide(axis="index").to_latex(
        column_format="l" + "r" * (len(head) - 1),
        caption=latex(caption),
        label=f"tab:{label}",
        position_float="centering",
        hrules=True,
    )


def show(results: TableResults, folder: Path, console: Console | None = None) -> None:
    """Print the table, whose rows have their short names, and the folder of its files."""
    head, body = markdown.rows(results)
    names = [*(line.name for line in results.lines), *(b.name for b in results.baselines)]
    columns = [column for column in head[1:] if not column.startswith("published ")]
    lines = [[name, *row[1 : 1 + len(columns)]] for name, row in zip(names, body, strict=True)]
    title = f"{results.table.title}, scale={results.scale}"
    console = formatting.show_grid(title, ["row"], columns, lines, console)
    if warning := results.other_text:
        console.print(warning, highlight=False, soft_wrap=True, markup=False)
    console.print(str(folder), highlight=False, soft_wrap=True, markup=False)
