"""Write a comparison's files, and print its table in a terminal."""

from __future__ import annotations

import csv
import hashlib
import io
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from chimera.errors import UserError, one_line
from chimera.paths import home, store_root
from chimera.report import canvas, digits
from chimera.report.compare.collect import collect, summary_of
from chimera.report.compare.figure import overlay
from chimera.report.compare.groups import Comparison, compare
from chimera.report.compare.page import FACTS, page
from chimera.rundir.atomic import write_atomic
from chimera.rundir.summaries import Summaries

#: Runs that are read faster than an index of them.
FEW = 20
#: Rows that a terminal is shown.
SHOWN = 20
#: First characters of a text that a spreadsheet would take for a formula.
FORMULA = ("=", "+", "-", "@", "\t", "\r")


def write_comparison(
    paths: Sequence[Path],
    out: Path | None = None,
    *,
    by: Sequence[str] = (),
    metric: str | None = None,
    better: str | None = None,
) -> tuple[Comparison, Path]:
    """Compare runs; write compare.html, .csv, .png and .svg; return the comparison and the folder.

    Args:
        paths: directories of runs.
        out: folder of the files; None: that of `folder_of`.
        by, metric, better: as of `compare`.

    Raises:
        UserError: a key or metric that no run has; no run can be read; the folder cannot be made.
    """
    summaries = Summaries()
    runs, broken = collect(paths, summaries)
    if not runs:
        raise UserError(f"none of {len(paths)} runs can be read: {next(iter(broken.values()))}")
    names = {one_line(path.name): why for path, why in broken.items()}
    found = compare(runs, by=by, metric=metric, better=better, broken=names)
    folder = out or folder_of(found, paths)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"out={folder} cannot be made ({error.strerror}); name another") from error
    figure = overlay(found)
    picture = canvas.png(figure)
    (folder / "compare.png").write_bytes(picture)
    (folder / "compare.svg").write_bytes(svg(figure))
    write_atomic(folder / "compare.csv", comma_separated(found))
    write_atomic(folder / "compare.html", page(found, folder, picture))
    if len(runs) > FEW:  # RUNNING may become anything without a change of its files
        over = {run.path: summary_of(run) for run in runs if run.state in ("DONE", "FAILED")}
        summaries.save(over)
    return found, folder


def folder_of(comparison: Comparison, paths: Sequence[Path]) -> Path:
    """Default folder of a comparison: the same for the same runs.

    It is below `reports/compare/` for runs in `runs/` and records of the run store, and below
    `compare/` beside other runs.
    """
    text = "\n".join(sorted(str(path.absolute()) for path in paths))
    named = "-".join(re.sub(r"\W+", "_", key) for key in comparison.keys[:3]) or "runs"
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    parents = {path.absolute().parent for path in paths}
    own = parents <= {(home() / "runs").absolute(), store_root().absolute()}
    place = home() / "reports" if own else Path(os.path.commonpath(parents))
    return place / "compare" / f"{named[:60]}-{digest}"


def comma_separated(comparison: Comparison) -> str:
    """Contents of compare.csv: a line per group, in full precision."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    metric = comparison.metric
    writer.writerow(
        map(_text, [*comparison.keys, metric, "std", "n", "runs", *FACTS, "directories"])
    )
    for group in comparison.groups:
        result = group.result
        numbers = [result.mean, result.std, result.n] if result else [None, None, 0]
        row: list[Any] = [*(group.values[key] for key in comparison.keys), *numbers, group.states]
        row += [group.facts.get(name) for name in FACTS]
        row.append(";".join(str(run.path) for run in group.runs))
        writer.writerow(["" if value is None else _text(value) for value in row])
    return out.getvalue()


def svg(figure: Any) -> bytes:
    """A figure as SVG without a time."""
    import matplotlib

    out = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "chimera"}):
        figure.savefig(out, format="svg", metadata={"Date": None})
    return out.getvalue()


def show(comparison: Comparison, console: Console) -> None:
    """Print the best groups in a terminal."""
    count = len(comparison.runs)
    title = f"{count} run{'s' * (count != 1)}, {comparison.better} {comparison.metric} first"
    grid = Grid(title=Text(title), title_justify="left")
    for key in comparison.keys or ("runs",):
        grid.add_column(Text(key), overflow="fold")
    for name in (comparison.metric, "runs", "tokens/s", "GB"):
        grid.add_column(Text(name), justify="right")
    for group in comparison.groups[:SHOWN]:
        speed, memory = (group.facts.get(k) for k in ("tokens_per_second", "peak_memory_gb"))
        cells = [*(group.values[key] for key in comparison.keys)] or ["all"]
        cells += [digits.spread(group.result) if group.result else "", group.states]
        cells += ["" if speed is None else f"{speed:,.0f}"]
        cells += ["" if memory is None else f"{memory:.2f}"]
        grid.add_row(*map(Text, cells))
    wide = console if console.is_terminal else Console(file=console.file, width=160)
    wide.print(grid)
    if (rest := len(comparison.groups) - SHOWN) > 0:
        wide.print(f"and {rest} more in compare.csv", highlight=False)
    if line := comparison.other_text:
        wide.print(Text(line), soft_wrap=True)
    for name, why in list(comparison.broken.items())[:SHOWN]:
        wide.print(Text(f"not read: {name}: {why}"), soft_wrap=True)


def _text(value: Any) -> Any:
    """A value of a cell that no spreadsheet takes for a formula."""
    if isinstance(value, str) and value.startswith(FORMULA) and not _is_number(value):
        return f"'{value}"
    return value


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
