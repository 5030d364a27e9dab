"""Write report.md: the table, order of rows, missing runs, settings, origin of the runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from chimera.config.tables import title_of
from chimera.paths import CONF
from chimera.report import budget, digits, measured, notes, origin, settings
from chimera.report.baselines import baselines
from chimera.report.cells import Cell
from chimera.report.escape import Markdown, block, cell, code, markdown
from chimera.report.order import order as order
from chimera.report.stats import LEVEL
from chimera.report.summary import Line, Summary

#: Most columns of published numbers in the main table; more go into a table of their own.
MAX_PUBLISHED_COLUMNS = 4


def report(summary: Summary) -> str:
    """Contents of report.md; the same runs give the same text."""
    parts = [
        f"# {markdown(summary.table.title)}",
        _about(summary),
        _sentence(title_of(CONF / "scale" / f"{summary.scale}.yaml")),
        notes.past_scale(summary),
        notes.left_out(summary),
        notes.rates(summary),
        _sentence(summary.table.note),
        table(summary),
        f"{notes.statistics(summary)} «size» counts ternary weights packed five to a byte"
        f" with their scales, and all other weights as stored in training."
        f"{notes.flops(summary)}",
        notes.processors(summary),
        notes.beaten(summary),
        "![published and ours](report.png)",
        "![loss of every row](curves.png)",
        "![loss against FLOPs and time](budget.png)" if budget.known(summary) else "",
        "## Order of rows",
        order(summary),
        *_missing(summary),
        *_measured(summary),
        *_printed(summary),
        "## Settings",
        grid(["setting", "here", "at scale=paper"], settings.shared(summary)),
        *map(_sentence, settings.trained_on(summary)),
        *_differing(summary),
        "## Runs",
        *_origin(summary),
        grid(["row", "seed", "state", summary.table.metric, "commit", "directory"], _runs(summary)),
        "## Reproduce",
        block("\n".join(origin.commands(summary)), "bash"),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def table(summary: Summary) -> str:
    """The main table in Markdown."""
    head, body = rows(summary)
    labels = [*map(_label, summary.lines), *(_emphasis(b.title) for b in baselines(summary))]
    return grid(head, [[label, *row[1:]] for label, row in zip(labels, body, strict=True)])


def rows(summary: Summary) -> tuple[list[str], list[list[str]]]:
    """Head and cells of the main table as plain text, without empty columns; baselines last."""
    head = ["row", "published", "ours", "difference", f"{1 - LEVEL:.0%} interval", "p"]
    head += ["parameters", "size"]
    columns = _only_published(summary)
    columns = columns if len(columns) <= MAX_PUBLISHED_COLUMNS else []
    head += ["FLOPs/token", "MFU", "tokens/s", "time", *(f"published {c}" for c in columns)]
    body = [
        [*_row(summary, line), *(_also_published(line, c) for c in columns)]
        for line in summary.lines
    ]
    body += [
        [f"{b.title} ({b.name})", "", digits.spread(b.value), *[""] * (len(head) - 3)]
        for b in baselines(summary)
    ]
    always = 3  # row, published, ours
    shown = [i for i in range(len(head)) if i < always or any(row[i] for row in body)]
    return [head[i] for i in shown], [[row[i] for i in shown] for row in body]


def _label(line: Line) -> Markdown:
    name = code(line.name)
    return name if line.title == line.name else Markdown(f"{markdown(line.title)} ({name})")


def grid(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """Write a Markdown table; escape every cell that is not `Markdown` yet."""
    lines = [head, [Markdown("---")] * len(head), *body]
    return "\n".join(f"| {' | '.join(map(cell, line))} |" for line in lines)


def _emphasis(title: str) -> Markdown:
    return Markdown(f"*{markdown(title)}*")


def _row(summary: Summary, line: Line) -> list[str]:
    facts = line.facts
    difference, interval, p = "", "", ""
    if line.name == summary.table.reference:
        difference = "reference"
    elif line.difference is not None:
        difference = digits.spread(line.difference, sign=True)
        if line.difference.n < len(line.cells):
            difference += f" ({digits.seeds(line.difference.n)})"
        if not summary.table.counts:
            interval, p = digits.interval(line.difference), digits.p_value(line.difference)
    published = line.published
    return [
        f"{line.title} ({line.name})" if line.title != line.name else line.name,
        _published(published.value, published.unit) if published else "",
        line.result,
        difference,
        interval,
        p,
        _formatted(facts["parameters"], digits.count),
        _formatted(facts["bytes_packed"], lambda size: f"{digits.count(size)}B"),
        _formatted(facts["flops"], digits.count),
        _formatted(facts["mfu"], lambda share: f"{share:.1%}"),
        _formatted(facts["tokens_per_second"], lambda speed: digits.number(speed, 3)),
        _formatted(facts["seconds"], digits.clock),
    ]


def _measured(summary: Summary) -> list[str]:
    """Sections of the further metrics, with the published numbers in brackets."""
    sections = []
    if measured.columns(summary):
        sections += ["## Other measured metrics", grid(*measured.columns_grid(summary))]
    families = measured.families(summary)
    if families:
        name = "layer" if all(family.unit == "block" for family in families) else "length"
        grids = measured.grids(summary)
        parts = [f"{markdown(title)}:\n\n{grid(head, body)}" for title, head, body in grids]
        sections += [f"## By {name}", *parts, f"![by {name}](lengths.png)"]
    return sections


def _only_published(summary: Summary) -> list[str]:
    """Columns of the paper that no run has."""
    measured_columns = measured.columns(summary)
    return [column for column in summary.columns if column not in measured_columns]


def _printed(summary: Summary) -> list[str]:
    """Section of the published numbers that are not in the main table, and of notes on them."""
    parts = []
    columns = _only_published(summary)
    if len(columns) > MAX_PUBLISHED_COLUMNS:
        configs = summary.at_paper_scale
        body = [
            [
                column,
                *(
                    _with_ours(_also_published(line, column), configs[line.name].get(column))
                    for line in summary.lines
                ),
            ]
            for column in columns
        ]
        parts += [
            "In brackets: the value of our configuration at scale=paper, if it has a key of that"
            " name.",
            grid(["published", *(line.name for line in summary.lines)], body),
        ]
    rows_by_note: dict[str, list[str]] = {}
    for p in summary.table.published:
        if p.note:
            rows_by_note.setdefault(f"{p.column}: {p.note}", []).append(p.row)
    all_rows = {line.name for line in summary.trained}
    notes = [
        f"- {_sentence(note)}"
        + ("" if all_rows <= set(names) else f" ({', '.join(map(code, dict.fromkeys(names)))})")
        for note, names in rows_by_note.items()
    ]
    parts += ["\n".join(notes)] if notes else []
    return ["## Other published numbers", *parts] if parts else []


def _with_ours(published: str, ours: object) -> str:
    return published if ours is None or not published else f"{published} ({ours})"


def _also_published(line: Line, column: str) -> str:
    published = line.also_published.get(column)
    return _published(published.value, published.unit) if published else ""


def _published(value: float, unit: str) -> str:
    text = f"{value:,.0f}" if value.is_integer() and abs(value) >= 1e5 else f"{value:g}"
    return f"{text} {unit}".strip()


def _formatted(value: float | None, format_value: Callable[[float], str]) -> str:
    return "" if value is None else format_value(value)


def _missing(summary: Summary) -> list[str]:
    """Section of the runs that are not done, with the reasons."""
    undone = [run for run in summary.cells if run.state != "done"]
    if not undone:
        return []
    lines = [
        f"- {code(run.row)}, seed {run.seed}: {run.state}"
        + (f": {markdown(run.why)}" if run.why else "")
        for run in undone
    ]
    text = f"{len(undone)} of {len(summary.cells)} runs are not in the table:"
    return ["## Missing runs", text, "\n".join(lines)]


def _differing(summary: Summary) -> list[str]:
    keys, by_row = settings.differing(summary)
    if not keys:
        return []
    body = [[code(key), *(values[i] for values in by_row.values())] for i, key in enumerate(keys)]
    return ["Settings that differ by row:", grid(["setting", *by_row], body)]


def _origin(summary: Summary) -> list[str]:
    runs = summary.cells
    counts = [
        *((f"code {commit}", n) for commit, n in origin.counted(runs, origin.commit)),
        *((f"machine {machine}", n) for machine, n in origin.counted(runs, origin.machine)),
    ]
    return ["\n".join(f"- {markdown(description)}: {n} runs" for description, n in counts)]


def _runs(summary: Summary) -> list[list[str]]:
    return [
        [
            run.row,
            str(run.seed),
            _state(run),
            "" if run.value is None else digits.number(run.value, 5),
            origin.commit(run.environment, 8).partition(" with")[0] if run.environment else "",
            run.directory.name if run.state != "missing" else "",
        ]
        for run in summary.cells
    ]


def _about(summary: Summary) -> str:
    seeds = ", ".join(map(str, summary.seeds))
    table = summary.table
    return (
        f"{_sentence(table.source)} Scale {code(summary.scale)}, seeds {seeds}."
        f" Metric {markdown(table.metric)}, {table.better} is better. Numerics {summary.numerics}."
        f"{notes.seeds(summary)}"
    )


def _state(run: Cell) -> str:
    """State of a run, with the number of skipped steps if there are any."""
    skipped = sum(run.record.get("skipped", {}).values())
    return f"{run.state}, {skipped} steps skipped" if skipped else run.state


def _sentence(text: str) -> str:
    """Escape text as Markdown and end it with a full stop."""
    line = markdown(text)
    return line if not line or line.endswith(".") else f"{line}."
