"""Write a comparison: one HTML page that loads nothing, its picture, its table.

The page has curves that can be zoomed, a table to sort and filter, links. Jinja escapes every text
of a run, and `<` in the JSON from which the script reads its data; the script writes them with
`textContent`.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pandas as pd

from chimera.errors import UserError, one_line
from chimera.paths import home, records_roots
from chimera.report import formatting, style
from chimera.report.comparison import (
    ABSENT,
    AXES,
    FACTS,
    Comparison,
    Group,
    collect,
    compare,
    path_of,
)
from chimera.rundir.records import Record
from chimera.safe_io import make_folder, write_atomic

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Groups that are drawn (more lines cannot be told apart), that a terminal is shown, and whose
#: curves are in the page; the tables have all.
DRAWN = 12
SHOWN = 20
CURVES = 200
#: First characters of a text that a spreadsheet would take for a formula.
FORMULA = ("=", "+", "-", "@", "\t", "\r")


def write_comparison(
    found: Sequence[Path | Record],
    out: Path | None = None,
    *,
    by: Sequence[str] = (),
    metric: str | None = None,
    better: str | None = None,
) -> tuple[Comparison, Path]:
    """Compare runs; write compare.html, .csv, .png and .svg; return the comparison and the folder.

    Args:
        found: directories of runs, and records.
        out: folder of the files; None: that of `folder_of`.
        by, metric, better: as of `compare`.

    Raises:
        UserError: a key or metric that no run has; no run can be read; the folder cannot be made.
    """
    runs, broken = collect(found)
    if not runs:
        raise UserError(f"none of {len(found)} runs can be read: {next(iter(broken.values()))}")
    names = {one_line(path.name): why for path, why in broken.items()}
    comparison = compare(runs, by=by, metric=metric, better=better, broken=names)
    folder = out or folder_of(comparison, [path_of(run) for run in found])
    make_folder(folder, of=folder, key="out")
    picture = folder / "compare.png"
    style.save(overlay(comparison), picture, ("png", "svg"))
    write_atomic(folder / "compare.csv", _csv(comparison))
    write_atomic(folder / "compare.html", page(comparison, folder, picture.read_bytes()))
    return comparison, folder


def folder_of(comparison: Comparison, paths: Sequence[Path]) -> Path:
    """Default folder of a comparison: the same for the same runs.

    It is below `reports/compare/` for runs in `runs/` and for records, else below `compare/` beside
    the runs.
    """
    text = "\n".join(sorted(str(path.absolute()) for path in paths))
    named = "-".join(re.sub(r"\W+", "_", key) for key in comparison.keys[:3]) or "runs"
    digest = hashlib.sha256(os.fsencode(text)).hexdigest()[:8]
    parents = {path.absolute().parent for path in paths}
    roots = [root.absolute() for root in (home() / "runs", *records_roots())]
    own = all(any(parent.is_relative_to(root) for root in roots) for parent in parents)
    place = home() / "reports" if own else Path(os.path.commonpath(parents))
    return place / "compare" / f"{named[:60]}-{digest}"


def overlay(comparison: Comparison) -> Figure:
    """A panel for each axis, with a line per group, the best ones; a shade spans its runs."""
    from matplotlib.ticker import EngFormatter  # slow to import

    groups = list(islice((g for g in comparison.groups if len(g.band("steps"))), DRAWN))
    figure = style.empty(11, 7.2 + 0.22 * len(groups))
    panels = figure.subplots(2, 2, sharey=True).flat
    for panel, (axis, label) in zip(panels, AXES.items(), strict=True):
        for number, group in enumerate(groups):
            if len(found := group.band(axis)):
                x, mean, low, high = found.T
                style.band(panel, x, mean, low, high, number, _label(group))
        panel.set_xlabel(label)
        if axis != "seconds":  # a thousandth of a second would be called 1m
            panel.xaxis.set_major_formatter(EngFormatter(sep=""))
        style.tidy(panel)
        style.clip(panel)
        if not panel.lines:
            panel.text(0.5, 0.5, "not known", ha="center", transform=panel.transAxes)
    for panel in figure.axes[::2]:
        panel.set_ylabel("training loss (nats)")
    rest = len(comparison.groups) - len(groups)
    first = comparison.tables[0]
    order = f"best first by {first.metric} ({first.better} is better)"
    if len(comparison.tables) > 1:
        order = "by table, best first"
    title = f"Training loss, {order}" + f"; {rest} more in the page" * (rest > 0)
    figure.suptitle(style.escaped(title), fontsize=11)
    style.legend(figure, figure.axes[0])
    return figure


def _label(group: Group) -> str:
    """Legend of a group: its table, what tells it from the others there, its result, its seeds."""
    end = f": {formatting.spread(group.result)}" if group.result else ""
    name = f"{group.table}: {group.label}" if group.table else group.label
    name = name if len(name) <= 100 else f"{name[:99]}…"
    return f"{name}{end} ({group.count})"


def page(comparison: Comparison, folder: Path, picture: bytes) -> str:
    """The page as HTML.

    Args:
        comparison: to show.
        folder: of the page; links are relative to it.
        picture: PNG of the curves, for a browser without scripts.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined  # slow to import

    def address(target: Path) -> str:
        path = os.path.relpath(target.absolute(), folder.absolute())
        return quote(os.fsencode(Path(path).as_posix()))

    loader = PackageLoader("chimera", "report")
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
    environment.globals |= {"address": address, "one_line": one_line, "number": formatting.number}
    return environment.get_template("compare.html").render(
        comparison=comparison,
        facts=FACTS,
        axes=AXES,
        links=_links(comparison, folder),
        image=base64.b64encode(picture).decode(),
        data={"axes": AXES, "series": _series(comparison)},
    )


def _series(comparison: Comparison) -> list[dict[str, Any]]:
    """What the script draws: the curves of the first groups on each axis, in five digits.

    At first those of the first table are shown: runs of others are not to be compared with them.
    """
    first = comparison.tables[0].title
    series: list[dict[str, Any]] = []
    for number, group in enumerate(comparison.groups[:CURVES]):
        curves = {
            axis: [[float(f"{value:.5g}") for value in point] for point in group.band(axis)]
            for axis in AXES
        }
        look = style.line(number)
        dashes = look["linestyle"]
        if any(curves.values()):
            series.append(
                {
                    "group": number,
                    "label": _label(group),
                    "colour": look["color"],
                    "dash": "" if dashes == "-" else " ".join(f"{2 * n:g}" for n in dashes[1]),
                    "shown": len(series) < DRAWN and group.table == first,
                    "curves": curves,
                }
            )
    return series


def _links(comparison: Comparison, folder: Path) -> dict[str, Path]:
    """The other files of the comparison and the reports of the runs' tables."""
    names = {name: folder / name for name in ("compare.csv", "compare.png", "compare.svg")}
    for table in sorted({run.table for run in comparison.runs if run.table}):
        place = home() / "reports" / table
        if ".." not in Path(table).parts and place.is_dir():
            reports = sorted(place.glob("*/report.md"))
            names |= {str(file.relative_to(home())): file for file in reports}
    return names


def _csv(comparison: Comparison) -> str:
    """Contents of compare.csv: a line per group, in full precision."""
    metrics = dict.fromkeys(table.metric for table in comparison.tables)
    ends = ("std", "n", "runs", "differ in", *FACTS, "directories")
    columns = list(dict.fromkeys(["table", *comparison.keys, *metrics, *ends]))
    lines: list[dict[str, Any]] = []
    for group in comparison.groups:
        settings = group.runs[0].settings  # keys of other tables are equal in all its runs
        line: dict[str, Any] = {key: settings.get(key, ABSENT) for key in comparison.keys}
        if r := group.result:
            line |= {group.metric: r.mean, "std": r.std}
        state = group.runs[0].state
        runs = len(group.runs) if state == "DONE" else state.lower()
        line |= {"table": group.table, "n": r.n if r else 0, "runs": runs, **group.facts}
        line["differ in"] = " ".join(group.differ)
        line["directories"] = ";".join(one_line(run.path) for run in group.runs)
        lines.append(line)
    frame = pd.DataFrame(lines, columns=columns)
    return frame.map(_plain).rename(columns=_plain).to_csv(index=False, lineterminator="\n")


def _plain(value: Any) -> Any:
    """A value of a cell that no spreadsheet takes for a formula."""
    if isinstance(value, str) and value.startswith(FORMULA):
        try:
            float(value)
        except ValueError:
            return f"'{value}"
    return value


def show(comparison: Comparison, folder: Path) -> None:
    """Print the best groups, and where the page is."""
    shown = 0
    for table in comparison.tables:
        body = []
        for group in table.groups[: SHOWN - shown]:
            cells = [*group.values.values()] or ["all"]
            cells += [formatting.spread(group.result) if group.result else "", group.count]
            for name in ("tokens_per_second", "peak_memory_gb"):
                cells.append(FACTS[name][2](group.facts[name]) if name in group.facts else "")
            body.append(cells)
        shown += len(body)
        if body:
            numbers = (table.metric, "mean of", "tokens/s", "GB")
            formatting.show_grid(table.order, table.keys or ("",), numbers, body)
    if rest := len(comparison.groups) - shown:
        print(f"and {rest} more in compare.csv")
    print(*comparison.notes, sep="\n", end="\n" * bool(comparison.notes))
    for name, why in list(comparison.broken.items())[:SHOWN]:
        print(f"not read: {name}: {why}")
    print(folder / "compare.html")
