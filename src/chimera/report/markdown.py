"""Write report.md: the table, order of rows, missing runs, settings, origin of the runs."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence, Set
from functools import partial
from typing import Any

from chimera.config.tables import Published, title_of
from chimera.paths import CONF
from chimera.report import formatting, metric_grid, notes, provenance
from chimera.report.formatting import Markdown, block, cell, code, codes, markdown
from chimera.report.stats import LEVEL, Difference
from chimera.report.table_results import Cell, Line, TableResults

#: Most columns of published numbers in the main table; more go into a table of their own.
MAX_PUBLISHED_COLUMNS = 4


def report(results: TableResults, pictures: Set[str] = frozenset(("report", "curves"))) -> str:
    """Contents of report.md; the same runs give the same text.

    Args:
        results: of the table.
        pictures: names of its figures.
    """
    text = _rendered(
        "report.md.jinja",
        results=results,
        notes=notes,
        provenance=provenance,
        grid=grid,
        scale=title_of(CONF / "scale" / f"{results.scale}.yaml"),
        finished=sorted({line.ours.n if line.ours else 0 for line in results.lines}),
        tested=any(line.difference and line.difference.std is not None for line in results.lines),
        interval=f"{1 - LEVEL:.0%}",
        main_table=table(results),
        pictures=pictures,
        metric_grid=metric_grid,
        published_grid=_published_grid(results),
        published_notes=_published_notes(results),
        runs=_runs(results),
        commands=block("\n".join(provenance.commands(results)), "bash"),
        order=order(results),
    )
    return f"{text}\n"


def order(results: TableResults) -> str:
    """Compare the order of rows with the paper's, pair by pair, in Markdown."""
    return _rendered("order.md.jinja", results=results, level=f"{LEVEL:g}")


def _rendered(template: str, **values: Any) -> str:
    """A template of this package, with one empty line between two paragraphs."""
    from jinja2 import Environment, PackageLoader, StrictUndefined  # slow to import

    environment = Environment(
        loader=PackageLoader("chimera", "report"), undefined=StrictUndefined, trim_blocks=True
    )
    environment.filters |= {of.__name__: of for of in (code, codes, markdown, formatting.spread)}
    environment.filters |= {"sentence": _sentence, "verdict": _verdict}
    text = environment.get_template(template).render(**values)
    return re.sub(r"\n{3,}", "\n\n", text).strip()


def table(results: TableResults) -> str:
    """The main table in Markdown."""
    head, body = rows(results)
    labels = [_label(line) for line in results.lines]
    labels += [Markdown(f"*{markdown(b.title)}*") for b in results.baselines]
    return grid(head, [[label, *row[1:]] for label, row in zip(labels, body, strict=True)])


def _label(line: Line) -> Markdown:
    name = code(line.name)
    return name if line.title == line.name else Markdown(f"{markdown(line.title)} ({name})")


def rows(results: TableResults) -> tuple[list[str], list[list[str]]]:
    """Head and cells of the main table as plain text, without empty columns; baselines last."""

    def tested(write: Callable[[Difference], str]) -> Callable[[Line], str]:
        shown = not results.table.counts
        return lambda line: write(line.difference) if shown and line.difference else ""

    def fact(name: str, write: Callable[[float], str]) -> Callable[[Line], str]:
        return lambda line: "" if (value := line.facts[name]) is None else write(value)

    columns: dict[str, Callable[[Line], str]] = {
        "row": lambda x: x.title if x.title == x.name else f"{x.title} ({x.name})",
        "published": lambda line: _published(line.published),
        "ours": lambda line: line.result,
        "difference": lambda line: _difference(results, line),
        f"{1 - LEVEL:.0%} interval": tested(formatting.interval),
        "p": tested(formatting.p_value),
        "parameters": fact("parameters", formatting.count),
        "size": fact("bytes_packed", lambda size: f"{formatting.count(size)}B"),
        "FLOPs/token": fact("flops", formatting.count),
        "MFU": fact("mfu", "{:.1%}".format),
        "tokens/s": fact("tokens_per_second", lambda speed: formatting.number(speed, 3)),
        "time": fact("seconds", formatting.clock),
    }
    further = _only_published(results)
    for name in further if len(further) <= MAX_PUBLISHED_COLUMNS else ():
        columns[f"published {name}"] = partial(_also_published, name)
    body = [{name: write(line) for name, write in columns.items()} for line in results.lines]
    body += [
        {"row": f"{b.title} ({b.name})", "ours": formatting.spread(b.value)}
        for b in results.baselines
    ]
    always = ("row", "published", "ours")
    head = [name for name in columns if name in always or any(row.get(name) for row in body)]
    return head, [[row.get(name, "") for name in head] for row in body]


def _difference(results: TableResults, line: Line) -> str:
    if line.name == results.table.reference:
        return "reference"
    if line.difference is None:
        return ""
    fewer = line.difference.n < len(line.cells)
    seeds = f" ({formatting.seeds(line.difference.n)})" if fewer else ""
    return formatting.spread(line.difference, sign=True) + seeds


def _published(number: Published | None) -> str:
    if number is None:
        return ""
    large = number.value.is_integer() and abs(number.value) >= 1e5
    text = f"{number.value:,.0f}" if large else f"{number.value:g}"
    return f"{text} {number.unit}".strip()


def _also_published(column: str, line: Line) -> str:
    return _published(line.also_published.get(column))


def grid(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """Write a Markdown table; escape every cell that is not `Markdown` yet."""
    lines = [head, [Markdown("---")] * len(head), *body]
    return "\n".join(f"| {' | '.join(map(cell, line))} |" for line in lines)


def _verdict(difference: Difference) -> str:
    """Whether a difference is significant, and its p."""
    if p := formatting.p_equals(difference):
        return f"{'' if difference.significant else 'not '}significant, {p}"
    return "one seed, no test" if difference.std is None else "a count, no test"


def _only_published(results: TableResults) -> list[str]:
    """Columns of the paper that no run has."""
    in_runs = metric_grid.columns(results)
    return [column for column in results.columns if column not in in_runs]


def _published_grid(results: TableResults) -> tuple[list[str], list[list[str]]] | None:
    """Published numbers that are too many for the main table, with our settings in brackets."""
    columns = _only_published(results)
    if len(columns) <= MAX_PUBLISHED_COLUMNS:
        return None
    configs = results.at_paper_scale

    def both(line: Line, column: str) -> str:
        published = _also_published(column, line)
        ours: Any = configs[line.name].get(column)
        return published if ours is None or not published else f"{published} ({ours})"

    body = [[column, *(both(line, column) for line in results.lines)] for column in columns]
    return ["published", *(line.name for line in results.lines)], body


def _published_notes(results: TableResults) -> list[str]:
    """Notes on the published numbers, each with the rows that it is of unless all are."""
    by_note: dict[str, dict[str, None]] = {}
    for p in results.table.published:
        if p.note:
            by_note.setdefault(f"{p.column}: {p.note}", {})[p.row] = None
    every = {line.name for line in results.trained}
    return [
        _sentence(note) + ("" if every <= names.keys() else f" ({codes(names)})")
        for note, names in by_note.items()
    ]


def _runs(results: TableResults) -> list[list[str]]:
    return [
        [
            run.row,
            str(run.seed),
            _state(run),
            "" if run.value is None else formatting.number(run.value, 5),
            _commit(run),
            run.directory.name if run.state != "missing" else "",
        ]
        for run in results.cells
    ]


def _commit(run: Cell) -> str:
    return provenance.commit(run.environment, 8).partition(" with")[0] if run.environment else ""


def _state(run: Cell) -> str:
    """State of a run, with the number of skipped steps if there are any."""
    skipped = sum(run.record.get("skipped", {}).values())
    return f"{run.state}, {skipped} steps skipped" if skipped else run.state


def _sentence(text: str) -> str:
    """Escape text as Markdown and end it with a full stop."""
    line = markdown(text)
    return line if not line or line.endswith(".") else f"{line}."
