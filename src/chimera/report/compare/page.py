"""One HTML page of a comparison: curves that can be zoomed, the table, links. It loads nothing.

Every text of a run is escaped; the script reads its data from JSON, in which `<` is escaped too,
and writes them with `textContent`.
"""

from __future__ import annotations

import base64
import json
import os
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import quote

from chimera.errors import one_line
from chimera.paths import home
from chimera.report import digits
from chimera.report.compare.collect import Run
from chimera.report.compare.figure import AXES, COLOURS, MOST, band, label
from chimera.report.compare.groups import Comparison, Group

#: Groups whose curves are in the page; the table has all.
CURVES = 200
#: What the page may load and run: nothing but itself.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
DASHES = ("", "10 4", "3 3", "12 4 3 4")
#: Columns of facts: title, and how a value is written.
FACTS = {
    "tokens_per_second": ("tokens/s", lambda x: f"{x:,.0f}"),
    "peak_memory_gb": ("memory, GB", lambda x: f"{x:.2f}"),
    "wall_seconds": ("time", digits.clock),
    "parameters": ("parameters", digits.count),
    "mfu": ("MFU", lambda x: f"{x:.1%}"),
}


def page(comparison: Comparison, folder: Path, picture: bytes) -> str:
    """The page as HTML.

    Args:
        comparison: to show.
        folder: of the page; links are relative to it.
        picture: PNG of the curves, for a browser without scripts.
    """
    image = base64.b64encode(picture).decode()
    title = f"{len(comparison.runs)} runs by {comparison.metric}"
    broken = "".join(
        f"<li>{escape(name)}: {escape(why)}</li>" for name, why in comparison.broken.items()
    )
    return TEMPLATE.format(
        policy=escape(POLICY),
        title=escape(title),
        style=_resource("page.css"),
        better=escape(f"{comparison.better} is better"),
        keys=escape(", ".join(comparison.keys) or "none: the runs agree in all settings"),
        reports=_reports(comparison, folder),
        text=f"<p>{escape(comparison.other_text)}</p>\n" if comparison.other_text else "",
        buttons="".join(
            f'<button data-axis="{escape(a.name)}">{escape(a.name)}</button>' for a in AXES
        ),
        image=image,
        head=_head(comparison),
        rows="\n".join(_row(comparison, n, g, folder) for n, g in enumerate(comparison.groups)),
        broken=f"<h2>Not read</h2><ul>{broken}</ul>" if broken else "",
        data=as_script(data(comparison)),
        script=_resource("page.js"),
    )


def data(comparison: Comparison) -> dict[str, Any]:
    """What the script draws: axes, and the curves of the first groups on each of them."""
    series: list[dict[str, Any]] = []
    for number, group in enumerate(comparison.groups[:CURVES]):
        curves = {axis.name: _points(group, axis.name) for axis in AXES}
        if any(curves.values()):
            series.append(
                {
                    "group": number,
                    "label": label(group),
                    "colour": COLOURS[number % len(COLOURS)],
                    "dash": DASHES[number % len(DASHES)],
                    "shown": len(series) < MOST,
                    "curves": curves,
                }
            )
    return {"axes": {axis.name: axis.label for axis in AXES}, "series": series}


def as_script(value: object) -> str:
    """JSON that cannot end the element it stands in."""
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def link(target: Path, folder: Path) -> str:
    """Relative address of a file, with every character that has a meaning in an address quoted."""
    path = os.path.relpath(target.absolute(), folder.absolute())
    return quote(Path(path).as_posix())


def _points(group: Group, axis: str) -> list[list[float]]:
    """[x, mean, least, largest loss] of a group on an axis, in five digits."""
    found = band(group, axis)
    if found is None:
        return []
    return [[float(f"{value:.5g}") for value in point] for point in zip(*found, strict=True)]


def _reports(comparison: Comparison, folder: Path) -> str:
    """Links to the other files of the comparison and to the reports of the runs' tables."""
    names = {name: folder / name for name in ("compare.csv", "compare.png", "compare.svg")}
    for table in sorted({run.table for run in comparison.runs if run.table}):
        place = home() / "reports" / table
        if ".." not in Path(table).parts and place.is_dir():
            names |= {
                str(file.relative_to(home())): file for file in sorted(place.glob("*/report.md"))
            }
    return " · ".join(f'<a href="{link(p, folder)}">{escape(n)}</a>' for n, p in names.items())


def _head(comparison: Comparison) -> str:
    facts = [title for title, _ in FACTS.values()]
    titles = ["", *comparison.keys, comparison.metric, "±", "runs", *facts, "directories"]
    return "".join(f"<th>{escape(title)}</th>" for title in titles)


def _row(comparison: Comparison, number: int, group: Group, folder: Path) -> str:
    result = group.result
    box = f'<input type="checkbox" data-group="{number}" aria-label="draw" hidden>'
    cells = [f"<td>{box}</td>"]
    cells += [_cell(group.values[key], group.values[key]) for key in comparison.keys]
    cells.append(_cell(digits.number(result.mean, 5) if result else "", result and result.mean))
    cells.append(_cell(digits.number(result.std, 2) if result and result.std else "", None))
    cells.append(_cell(group.states, len(group.runs)))
    for name, (_, shown) in FACTS.items():
        value = group.facts.get(name)
        cells.append(_cell("" if value is None else shown(value), value))
    links = " ".join(_link_of(run, folder) for run in group.runs)
    return f"<tr>{''.join(cells)}<td>{links}</td></tr>"


def _cell(shown: str, value: object) -> str:
    """A cell that sorts by its value."""
    kind = ' class="n"' if isinstance(value, int | float) else ""
    return f'<td{kind} data-v="{escape(str("" if value is None else value))}">{escape(shown)}</td>'


def _link_of(run: Run, folder: Path) -> str:
    seed, about = one_line(run.seed), f"{one_line(run.path.name)}, {run.state}"
    address = escape(link(run.path, folder))
    curves = escape(link(run.path / "curves.png", folder))
    name = escape(f"seed {seed}")
    return (
        f'<a href="{address}/" title="{escape(about)}">{name}</a>'
        f'<a class="small" href="{curves}">curves</a>'
    )


def _resource(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


TEMPLATE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<h1>{title}</h1>
<p>{better}. The runs differ in: {keys}. {reports}</p>
{text}<noscript><img alt="training losses" src="data:image/png;base64,{image}"></noscript>
<div id="chart" hidden>
<div class="bar">{buttons}<label><input type="checkbox" id="log"> logarithmic</label>
<span>wheel: zoom · drag: move · double click: all</span></div>
<svg id="plot" viewBox="0 0 960 420" role="img" aria-label="training loss"></svg>
<div id="legend"></div>
</div>
<input id="filter" placeholder="filter rows" aria-label="filter rows" hidden>
<div class="wide"><table id="rows"><thead><tr>{head}</tr></thead><tbody>
{rows}
</tbody></table></div>
{broken}
<script type="application/json" id="data">{data}</script>
<script>{script}</script>
</body>
</html>
"""
