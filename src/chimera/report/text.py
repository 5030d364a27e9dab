"""report.md: the table, then in words what a reader must know before he believes it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from chimera.config.tables import title_of
from chimera.paths import CONF
from chimera.report import digits, measured, origin, settings
from chimera.report.cells import Cell, metric
from chimera.report.stats import LEVEL
from chimera.report.summary import Line, Pair, Summary

#: So many columns of the paper's own fit into the table; more get one of their own.
WIDEST = 4


def markdown(summary: Summary) -> str:
    """The whole report; the same runs give the same text."""
    table = summary.table
    seeds = ", ".join(map(str, summary.seeds))
    parts = [
        f"# {table.title}",
        f"{_sentence(table.source)} Scale `{summary.scale}`, seeds {seeds}."
        f" Metric {table.metric}, {table.better} is better.{_unigram(summary)}",
        _sentence(title_of(CONF / "scale" / f"{summary.scale}.yaml")),
        _sentence(table.note),
        grid(*rows(summary)),
        f"Ours is mean ± sample standard deviation over seeds. Differences are to"
        f" `{table.reference}`, seed by seed, with p of a two-sided paired t-test, not corrected"
        f" for the number of rows. Size counts ternary weights packed five to a byte with their"
        f" scales, everything else as it is kept in training.",
        "![published and ours](report.png)",
        "![loss of every row](curves.png)",
        "## Order of rows",
        order(summary),
        *_missing(summary),
        *_measured(summary),
        *_printed(summary),
        "## Settings",
        grid(["setting", "here", "at scale=paper"], settings.shared(summary)),
        *[f"Trained on {line}." for line in settings.trained_on(summary)],
        *_differing(summary),
        "## Runs",
        *_origin(summary),
        grid(["row", "seed", "state", table.metric, "commit", "directory"], _runs(summary)),
        "## Again",
        f"```bash\n{origin.train_command(summary)}\n{origin.report_command(summary)}\n```",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def rows(summary: Summary) -> tuple[list[str], list[list[str]]]:
    """Head and cells of the table, as text; columns that would be empty are left out."""
    head = ["row", "published", "ours", "difference", "p", "parameters", "size"]
    columns = _only_printed(summary)
    columns = columns if len(columns) <= WIDEST else []
    head += ["FLOPs", "tokens/s", "time", *(f"published {c}" for c in columns)]
    body = [[*_row(summary, line), *(_other(line, c) for c in columns)] for line in summary.lines]
    always = 3
    kept = [i for i in range(len(head)) if i < always or any(row[i] for row in body)]
    return [head[i] for i in kept], [[row[i] for i in kept] for row in body]


def ours(line: Line) -> str:
    """Mean and spread, or in a word why there is none; seeds that are not done are counted."""
    undone = Counter(cell.state for cell in line.cells if cell.state != "done")
    states = ", ".join(f"{n} {state}" for state, n in undone.items())
    if line.ours is None:
        return next(iter(undone)) if len(undone) == 1 else states
    text = digits.spread(line.ours)
    return f"{text} ({line.ours.n} of {len(line.cells)} seeds; {states})" if undone else text


def order(summary: Summary) -> str:
    """Where our order of rows differs from the paper's, pair by pair."""
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
        how = f"`{first.name}` is worse by {worse} over {n} seed{'s' * (n != 1)} of both"
    p = digits.p_value(pair.difference)
    if p:
        p = f"p {p}" if p.startswith("<") else f"p = {p}"
    mine = f"{digits.spread(first.ours)} against {digits.spread(second.ours)}"
    verdict = "beyond the paired test" if pair.difference.beyond else "not beyond the paired test"
    if not p:
        verdict = "one seed, no test"
    return (
        f"- The paper has `{first.name}` ({first.published.value:g}) before `{second.name}`"
        f" ({second.published.value:g}); here {how}"
        f" ({mine}): {verdict}{f', {p}' if p else ''}."
    )


def grid(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *body]
    return "\n".join(f"| {' | '.join(_escaped(cell) for cell in line)} |" for line in lines)


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
        f"{line.title} (`{line.name}`)" if line.title != line.name else f"`{line.name}`",
        _published(published.value, published.unit) if published else "",
        ours(line),
        difference,
        p,
        _shown(facts["parameters"], digits.count),
        _shown(facts["bytes_packed"], lambda size: f"{digits.count(size)}B"),
        _shown(facts["flops"], digits.count),
        _shown(facts["tokens_per_second"], lambda speed: digits.number(speed, 3)),
        _shown(facts["seconds"], digits.clock),
    ]


def _measured(summary: Summary) -> list[str]:
    """What was measured besides, the paper's numbers in brackets."""
    found = []
    if measured.columns(summary):
        found += ["## What else was measured", grid(*measured.beside(summary))]
    parts = [f"{title}:\n\n{grid(head, body)}" for title, head, body in measured.grids(summary)]
    layers = all("/layer, by" in title for title, _, _ in measured.grids(summary))
    name = "layer" if layers else "length"
    return [*found, *([f"## By {name}", *parts, f"![by {name}](lengths.png)"] if parts else [])]


def _only_printed(summary: Summary) -> list[str]:
    """Columns that our runs have nothing of."""
    ours = measured.columns(summary)
    return [column for column in summary.columns if column not in ours]


def _printed(summary: Summary) -> list[str]:
    """What else the paper prints, our paper-scale setting of the same name in brackets; its notes.

    Few columns are in the table itself.
    """
    parts = []
    columns = _only_printed(summary)
    if len(columns) > WIDEST:
        ours = settings.at_paper_scale(summary)
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
        + ("" if every <= set(of) else f" ({', '.join(f'`{row}`' for row in dict.fromkeys(of))})")
        for note, of in noted.items()
    ]
    parts += ["\n".join(notes)] if notes else []
    return ["## What else the paper says", *parts] if parts else []


def _with_ours(published: str, ours: object) -> str:
    return published if ours is None or not published else f"{published} ({ours})"


def _other(line: Line, column: str) -> str:
    found = line.others.get(column)
    return _published(found.value, found.unit) if found else ""


def _published(value: float, unit: str) -> str:
    shown = f"{value:,.0f}" if value.is_integer() and abs(value) >= 1e5 else f"{value:g}"
    return f"{shown} {unit}".strip()


def _shown(value: float | None, how: Callable[[float], str]) -> str:
    return "" if value is None else how(value)


def _missing(summary: Summary) -> list[str]:
    """What is not done, and why."""
    undone = [cell for cell in summary.cells if cell.state != "done"]
    if not undone:
        return []
    lines = [
        f"- `{cell.row}`, seed {cell.seed}: {cell.state}"
        + (f": {' '.join(cell.why.split())}" if cell.why else "")
        for cell in undone
    ]
    text = f"{len(undone)} of {len(summary.cells)} runs:"
    return ["## Not there yet", text, "\n".join(lines)]


def _differing(summary: Summary) -> list[str]:
    keys, by_row = settings.differing(summary)
    if not keys:
        return []
    body = [[f"`{key}`", *(values[i] for values in by_row.values())] for i, key in enumerate(keys)]
    return ["Where rows differ:", grid(["setting", *by_row], body)]


def _origin(summary: Summary) -> list[str]:
    started = summary.cells
    commits = [f"- code {c}: {n} runs" for c, n in origin.counted(started, origin.commit)]
    machines = [f"- machine {m}: {n} runs" for m, n in origin.counted(started, origin.machine)]
    return ["\n".join([*commits, *machines])]


def _runs(summary: Summary) -> list[list[str]]:
    return [
        [
            cell.row,
            str(cell.seed),
            _state(cell),
            "" if cell.value is None else digits.number(cell.value, 5),
            origin.commit(cell.environment, 8).partition(" with")[0] if cell.environment else "",
            cell.directory.name if cell.state != "missing" else "",
        ]
        for cell in summary.cells
    ]


def _unigram(summary: Summary) -> str:
    """What knows nothing but how frequent each token is, on the same tokens as our rows."""
    found = {metric(cell.record, "val/unigram_perplexity") for cell in summary.cells}
    values = sorted(value for value in found if value is not None)
    if not values or summary.table.metric != "val/perplexity":
        return ""
    ends = dict.fromkeys(digits.number(value) for value in (values[0], values[-1]))
    return f" A unigram model has {' to '.join(ends)} on the same validation tokens."


def _state(cell: Cell) -> str:
    """With the steps that were left out, if there are any."""
    skipped = sum(cell.record.get("skipped", {}).values())
    return f"{cell.state}, {skipped} steps left out" if skipped else cell.state


def _sentence(text: str) -> str:
    text = " ".join(text.split())
    return text if not text or text.endswith(".") else f"{text}."


def _escaped(cell: str) -> str:
    return cell.replace("|", "\\|").replace("\n", " ")
