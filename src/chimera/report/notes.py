"""Sentences of a report that explain its numbers."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from chimera.config.row_learning_rates import SUFFIX, Tried, best, lines_at
from chimera.config.scale import past_bounds, shown
from chimera.report import digits
from chimera.report.baselines import baselines, below
from chimera.report.escape import code, markdown
from chimera.report.stats import LEVEL, alone
from chimera.report.summary import Summary


def statistics(summary: Summary) -> str:
    """Sentences on what the columns are, how the rows are tested, and what the table resolves."""
    text = "«ours» is the mean ± the sample standard deviation over seeds. «difference» is to"
    text += f" {code(summary.table.reference)}, seed by seed"
    if summary.table.counts:
        return f"{text}. The metric is a count, so no difference is tested."
    if all(line.difference is None or line.difference.std is None for line in summary.lines):
        return f"{text}. With one seed no difference is tested, and none of them is a finding."
    return (
        f"{text}, with the {1 - LEVEL:.0%} interval of its mean; p is of a two-sided paired t-test,"
        f" corrected for the number of rows by Holm's method. {resolved(summary)}"
    ).strip()


def seeds(summary: Summary) -> str:
    """Sentence on how many seeds the rows have, if some have fewer than were asked for."""
    numbers = sorted({line.ours.n if line.ours else 0 for line in summary.lines})
    if not numbers or numbers == [len(summary.seeds)]:
        return ""
    ends = " to ".join(str(n) for n in dict.fromkeys((numbers[0], numbers[-1])))
    plural = "s" * (numbers[-1] != 1)
    return f" Finished here: {ends} seed{plural} a row."


def left_out(summary: Summary) -> str:
    """Sentence on the rows of the table that were not chosen; empty if all were."""
    table = summary.table
    if not table.whole:
        return ""
    said = (
        f"{len(table.rows)} of the table's {len(table.whole.rows)} rows, chosen by"
        " `rows=`, and p corrected for these; not shown:"
        f" {', '.join(map(code, table.left_out))}."
    )
    if table.reference != table.whole.reference:
        said += (
            f" The table's reference, {code(table.whole.reference)}, is not shown either; here"
            f" {code(table.reference)} is the reference."
        )
    return said


def beaten(summary: Summary) -> str:
    """Sentence on the rows that are not better than a trivial predictor; empty if all are."""
    sentences = []
    for baseline in baselines(summary):
        if rows := below(baseline, summary):
            names = ", ".join(map(code, rows))
            value = digits.spread(baseline.value)
            sentences.append(f"Not better than «{markdown(baseline.title)}» ({value}): {names}.")
    return " ".join(sentences)


def flops(summary: Summary) -> str:
    """Sentence on the columns of FLOPs; empty if no run has counted them."""
    if all(line.facts["flops"] is None for line in summary.lines):
        return ""
    return (
        " «FLOPs/token» are those of matrix products in a training step, «MFU» is the share of the"
        " rate of one large product on the same machine."
    )


def processors(summary: Summary) -> str:
    """Sentence on runs of more than one processor; empty if all are of the same."""
    runs: dict[str, dict[str, set[int]]] = {}  # of each processor, the seeds of its rows
    for cell in summary.cells:
        if cell.state == "done" and (name := cell.computed_on):
            runs.setdefault(name, {}).setdefault(cell.row, set()).add(cell.seed)
    if len(runs) < 2:
        return ""
    rows = {row for by_row in runs.values() for row in by_row}
    if all(len(by_row) == len(rows) and _alike(by_row.values()) for by_row in runs.values()):
        listed = {name: _seeds(by_row.values()) for name, by_row in runs.items()}
        of = "them, with the same seeds of every row"
    else:
        listed = {name: _share(by_row) for name, by_row in runs.items()}
        of = (
            "a row's runs, and do not compare where rows mix them differently; two rows whose runs"
            " of a seed are of different processors have the seed in common, and not the rounding"
        )
    names = "; ".join(f"{markdown(name)} ({listed[name]})" for name in sorted(listed))
    return f"The runs are of {len(runs)} processors: {names}. Times and speeds are means over {of}."


def _share(by_row: Mapping[str, set[int]]) -> str:
    """How many runs of a processor there are, and of which row if of one."""
    runs = sum(map(len, by_row.values()))
    of = f" of {code(next(iter(by_row)))}" if len(by_row) == 1 else ""
    return f"{runs} run{'s' * (runs > 1)}{of}"


def _alike(seeds: Collection[set[int]]) -> bool:
    return len({frozenset(each) for each in seeds}) == 1


def _seeds(seeds: Collection[set[int]]) -> str:
    found = sorted(set().union(*seeds))
    return f"seed{'s' * (len(found) > 1)} {', '.join(map(str, found))}"


def resolved(summary: Summary) -> str:
    """Sentence on the smallest difference that the table can show; empty without spreads."""
    smallest = summary.resolvable
    if smallest is None:
        return ""
    tested = [d for line in summary.lines if (d := line.difference) and d.std is not None]
    seeds = min(d.n for d in tested)
    said = (
        f"With {seeds} seeds a difference of {digits.number(smallest, 2)} is the smallest that is"
        " resolved, by the spread of all differences together"
    )
    own = sorted(
        (limit, line.name)
        for line in summary.lines
        if (limit := alone(line.difference, len(tested))) is not None
    )
    if len(own) > 1:
        (low, least), (high, most) = own[0], own[-1]
        said += (
            f", and by that of each row {digits.number(low, 2)} ({code(least)}) to"
            f" {digits.number(high, 2)} ({code(most)})"
        )
    return f"{said}. "


def rates(summary: Summary) -> str:
    """Sentence on how the rows' learning rates were chosen; empty if they were not."""
    rows = {cell.row for cell in summary.cells}
    lines = [line for line in lines_at(summary.table.path, summary.scale) if line.row in rows]
    chosen = best(lines, summary.table.better)
    own = [cell for cell in summary.cells if cell.row in chosen]
    if not own or any(cell.config["optim"]["lr"] != chosen[cell.row] for cell in own):
        return ""
    others = dict.fromkeys(code(cell.row) for cell in summary.cells if cell.row not in chosen)
    who = f"Each row but {', '.join(others)}, whose rate was not chosen," if others else "Each row"
    values = ", ".join(f"{rate:g}" for rate in sorted({line.rate for line in lines}))
    seeds = sorted({line.seed for line in lines})
    metric, file = code(summary.table.metric), f"`{summary.table.name}{SUFFIX}`"
    first, *more = seeds
    further = {line.row for line in lines if line.seed != first}
    if further >= {cell.row for cell in own}:
        said = (
            f"{who} has the learning rate of {values} at which its seeds"
            f" {', '.join(map(str, seeds))}, which are not among these, have the best mean"
            f" {metric}; the first seed tried the rates, the others its two best ({file})."
        )
    else:
        said = (
            f"{who} has the learning rate of {values} at which its seed {first}, which is not"
            f" among these, has the best {metric} ({file})."
        )
        if names := ", ".join(dict.fromkeys(code(c.row) for c in own if c.row in further)):
            said += (
                f" For {names} its two best were tried on {', '.join(map(str, more))}, too, and the"
                " mean decides."
            )
    return said + _other_budget(summary, lines)


def _other_budget(summary: Summary, lines: Sequence[Tried]) -> str:
    """Sentence on rates that were chosen at another number of steps; empty if none were."""
    tried = {(line.row, line.steps) for line in lines if line.steps is not None}
    chosen_at = {row: {steps for of, steps in tried if of == row} for row, _ in tried}
    steps = {cell.row: int(cell.config["trainer"]["max_steps"]) for cell in summary.cells}
    apart = {row: at for row, at in chosen_at.items() if row in steps and at != {steps[row]}}
    if not apart:
        return ""
    then = ", ".join(map(str, sorted(set().union(*apart.values()))))
    now = ", ".join(map(str, sorted({steps[row] for row in apart})))
    return (
        f" They were chosen in runs of {then} steps, and these rows take {now}: the best rate there"
        " may be another."
    )


def past_scale(summary: Summary) -> str:
    """Sentence on settings past the bounds of the scale, with their rows; empty without any."""
    rows: dict[str, list[str]] = {}
    for cell in summary.cells:
        for key, at in past_bounds(cell.config).items():
            value = code(f"{key}={shown(at['value'])}")
            rows.setdefault(f"{value} (bound {at['bound']:g})", []).append(cell.row)
    if not rows:
        return ""
    every, settings = {cell.row for cell in summary.cells}, []
    for setting, names in rows.items():
        where = ", ".join(map(code, dict.fromkeys(names)))
        settings.append(setting if every <= set(names) else f"{setting} in {where}")
    how = "by the command line or the start model"
    return f"Past the bounds of this scale, {how}: {'; '.join(settings)}."
