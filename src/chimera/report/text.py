"""report.md: the table, then what a reader must know to trust it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from chimera.config.tables import title_of
from chimera.paths import CONF
from chimera.report import digits, measured, origin, settings
from chimera.report.cells import Cell, metric
from chimera.report.escape import Markdown, block, cell, code, markdown
from chimera.report.stats import LEVEL
from chimera.report.summary import Line, Pair, Summary

#: So many columns of the paper's own fit into the table; more get one of their own.
WIDEST = 4


def report(summary: Summary) -> str:
    """The whole report; the same runs give the same text."""
    parts = [
        f"# {markdown(summary.table.title)}",
        _about(summary),
        _sentence(title_of(CONF / "scale" / f"{summary.scale}.yaml")),
        _sentence(summary.table.note),
        table(summary),
        f"Ours is mean ± sample standard deviation over seeds. Differences are to"
        f" {code(summary.table.reference)}, seed by seed, with p of a two-sided paired t-test, not"
        f" corrected for the number of rows. Size counts ternary weights packed five to a byte with"
        f" their scales, everything else as it is kept in training.",
        "![published and ours](report.png)",
        "![loss of every row](curves.png)",
        "## Order of rows",
        order(summary),
        *_missing(summary),
        *_measured(summary),
        *_printed(summary),
        "## Settings",
        grid(["setting", "here", "at scale=paper"], settings.shared(summary)),
        *[f"Trained on {markdown(data)}." for data in settings.trained_on(summary)],
        *_differing(summary),
        "## Runs",
        *_origin(summary),
        grid(["row", "seed", "state", summary.table.metric, "commit", "directory"], _runs(summary)),
        "## Again",
        block(f"{origin.train_command(summary)}\n{origin.report_command(summary)}", "bash"),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def table(summary: Summary) -> str:
    """The table itself, in Markdown."""
    head, body = rows(summary)
    labelled = [[_label(line), *row[1:]] for line, row in zip(summary.lines, body, strict=True)]
    return grid(head, labelled)


def rows(summary: Summary) -> tuple[list[str], list[list[str]]]:
    """Head and cells of the table, as plain text; columns that would be empty are left out."""
    head = ["row", "published", "ours", "difference", "p", "parameters", "size"]
    columns = _only_printed(summary)
    columns = columns if len(columns) <= WIDEST else []
    head += ["FLOPs", "tokens/s", "time", *(f"published {c}" for c in columns)]
    body = [[*_row(summary, line), *(_other(line, c) for c in columns)] for line in summary.lines]
    always = 3
    kept = [i for i in range(len(head)) if i < always or any(row[i] for row in body)]
    return [head[i] for i in kept], [[row[i] for i in kept] for row in body]


def order(summary: Summary) -> str:
    """Where our order of rows differs from the paper's, pair by pair, in Markdown."""
    published = [line for line in summary.lines if line.published]
    if len(published) < 2:
        return "The paper prints no values of this metric that could be ranked."
    if not summary.pairs:
        return "No two ranked rows are done yet."
    against = [pair for pair in summary.pairs if not pair.agrees]
    agree = [pair for pair in summary.pairs if pair.agrees]
    firm = sum(pair.difference.beyond for pair in agree)
    text = (
        f"Of {len(summary.pairs)} pairs of rows that the paper ranks and that are done here,"
        f" {len(agree)} stand in the paper's order ({firm} of them beyond the paired test at"
        f" p < {LEVEL:g}), {len(against)} against it."
    )
    return "\n\n".join([text, *(["\n".join(map(_against, against))] if against else [])])


def _label(line: Line) -> Markdown:
    name = code(line.name)
    return name if line.title == line.name else Markdown(f"{markdown(line.title)} ({name})")


def _against(pair: Pair) -> str:
    first, second = pair.first, pair.second
    assert first.published is not None
    assert second.published is not None
    assert first.ours is not None
    assert second.ours is not None
    if pair.difference.mean == 0:
        how = "the same value"
    else:
        worse = digits.spread(pair.difference).removeprefix("-")
        n = pair.difference.n
        how = f"{code(first.name)} is worse by {worse} over {n} seed{'s' * (n != 1)} of both"
    p = digits.p_value(pair.difference)
    if p:
        p = f"p {p}" if p.startswith("<") else f"p = {p}"
    mine = f"{digits.spread(first.ours)} against {digits.spread(second.ours)}"
    verdict = "beyond the paired test" if pair.difference.beyond else "not beyond the paired test"
    if not p:
        verdict = "one seed, no test"
    return (
        f"- The paper has {code(first.name)} ({first.published.value:g}) before"
        f" {code(second.name)} ({second.published.value:g}); here {how}"
        f" ({mine}): {verdict}{f', {p}' if p else ''}."
    )


def grid(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """A Markdown table; cells that are not `Markdown` yet are escaped."""
    lines = [head, [Markdown("---")] * len(head), *body]
    return "\n".join(f"| {' | '.join(map(cell, line))} |" for line in lines)


def _row(summary: Summary, line: Line) -> list[str]:
    facts = line.facts
    difference, p = "", ""
    if line.name == summary.table.reference:
        difference = "reference"
    elif line.difference is not None:
        difference = digits.spread(line.difference, sign=True)
        if line.difference.n < len(line.cells):
            difference += f" ({line.difference.n} seeds)"
        p = digits.p_value(line.difference)
    published = line.published
    return [
        f"{line.title} ({line.name})" if line.title != line.name else line.name,
        _published(published.value, published.unit) if published else "",
        line.result,
        difference,
        p,
        _shown(facts["parameters"], digits.count),
        _shown(facts["bytes_packed"], lambda size: f"{digits.count(size)}B"),
        _shown(facts["flops"], digits.count),
        _shown(facts["tokens_per_second"], lambda speed: digits.number(speed, 3)),
        _shown(facts["seconds"], digits.clock),
    ]


def _measured(summary: Summary) -> list[str]:
    """Metrics besides the table's own, the paper's numbers in brackets."""
    sections = []
    if measured.columns(summary):
        sections += ["## What else was measured", grid(*measured.beside(summary))]
    families = measured.families(summary)
    if families:
        name = "layer" if all(family.unit == "block" for family in families) else "length"
        grids = measured.grids(summary)
        parts = [f"{markdown(title)}:\n\n{grid(head, body)}" for title, head, body in grids]
        sections += [f"## By {name}", *parts, f"![by {name}](lengths.png)"]
    return sections


def _only_printed(summary: Summary) -> list[str]:
    """Columns of the paper that no run has."""
    ours = measured.columns(summary)
    return [column for column in summary.columns if column not in ours]


def _printed(summary: Summary) -> list[str]:
    """What else the paper prints, unless it is in the table itself, and notes on it."""
    parts = []
    columns = _only_printed(summary)
    if len(columns) > WIDEST:
        ours = summary.at_paper_scale
        body = [
            [c, *(_with_ours(_other(line, c), ours[line.name].get(c)) for line in summary.lines)]
            for c in columns
        ]
        parts += [
            "In brackets what our configuration has at scale=paper, where it has a key of that"
            " name.",
            grid(["published", *(line.name for line in summary.lines)], body),
        ]
    noted: dict[str, list[str]] = {}
    for p in summary.table.published:
        if p.note:
            noted.setdefault(f"{p.column}: {p.note}", []).append(p.row)
    every = {line.name for line in summary.lines}
    notes = [
        f"- {_sentence(note)}"
        + ("" if every <= set(of) else f" ({', '.join(map(code, dict.fromkeys(of)))})")
        for note, of in noted.items()
    ]
    parts += ["\n".join(notes)] if notes else []
    return ["## What else the paper says", *parts] if parts else []


def _with_ours(published: str, ours: object) -> str:
    return published if ours is None or not published else f"{published} ({ours})"


def _other(line: Line, column: str) -> str:
    printed = line.others.get(column)
    return _published(printed.value, printed.unit) if printed else ""


def _published(value: float, unit: str) -> str:
    shown = f"{value:,.0f}" if value.is_integer() and abs(value) >= 1e5 else f"{value:g}"
    return f"{shown} {unit}".strip()


def _shown(value: float | None, how: Callable[[float], str]) -> str:
    return "" if value is None else how(value)


def _missing(summary: Summary) -> list[str]:
    """What is not done, and why."""
    undone = [run for run in summary.cells if run.state != "done"]
    if not undone:
        return []
    lines = [
        f"- {code(run.row)}, seed {run.seed}: {run.state}"
        + (f": {markdown(run.why)}" if run.why else "")
        for run in undone
    ]
    text = f"{len(undone)} of {len(summary.cells)} runs:"
    return ["## Not there yet", text, "\n".join(lines)]


def _differing(summary: Summary) -> list[str]:
    keys, by_row = settings.differing(summary)
    if not keys:
        return []
    body = [[code(key), *(values[i] for values in by_row.values())] for i, key in enumerate(keys)]
    return ["Where rows differ:", grid(["setting", *by_row], body)]


def _origin(summary: Summary) -> list[str]:
    runs = summary.cells
    counts = [
        *((f"code {commit}", n) for commit, n in origin.counted(runs, origin.commit)),
        *((f"machine {machine}", n) for machine, n in origin.counted(runs, origin.machine)),
    ]
    return ["\n".join(f"- {markdown(what)}: {n} runs" for what, n in counts)]


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
        f"{_unigram(summary)}"
    )


def _unigram(summary: Summary) -> str:
    """Perplexity of a unigram model, which knows token frequencies only, on the same tokens."""
    records = (metric(run.record, "val/unigram_perplexity") for run in summary.cells)
    values = sorted({value for value in records if value is not None})
    if not values or summary.table.metric != "val/perplexity":
        return ""
    ends = dict.fromkeys(digits.number(value) for value in (values[0], values[-1]))
    return f" A unigram model has {' to '.join(ends)} on the same validation tokens."


def _state(run: Cell) -> str:
    """With the number of skipped steps, if there are any."""
    skipped = sum(run.record.get("skipped", {}).values())
    return f"{run.state}, {skipped} steps left out" if skipped else run.state


def _sentence(text: str) -> str:
    """Text in Markdown, ended by a full stop."""
    line = markdown(text)
    return line if not line or line.endswith(".") else f"{line}."
