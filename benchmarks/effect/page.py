"""The page on what norm, quantiser and feed-forward layer cost and give, alone and together."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from benchmarks.effect import costs
from benchmarks.effect.fit import Cell, Effect, Lack
from benchmarks.effect.pairs import Name, Pair
from benchmarks.effect.plan import Plan, Task, analyse
from benchmarks.effect.runs import FACTORS, Measured
from chimera.errors import UserError
from chimera.report.digits import number
from chimera.report.escape import Markdown, code
from chimera.report.text import grid

#: Titles of the factors.
TITLES = ("Norm", "Quantiser", "Feed-forward layer")


def page(plan: Plan, runs: Sequence[Measured]) -> str:
    """Contents of docs/effects.md.

    Args:
        plan: of the design.
        runs: of each task.

    Raises:
        UserError: no task has enough cells.
    """
    tasks, without = analyse(plan, runs)
    if not tasks:
        raise UserError("; ".join(without))
    parts = [
        "# What norm, quantiser and feed-forward layer give",
        _about(plan, runs),
        "## Alone",
        _reading(plan, tasks),
        *(part for f in range(len(FACTORS)) for part in effects(plan, tasks, f)),
        "## How much that explains",
        explained(tasks),
        _explaining(tasks),
        "## Together",
        _together(plan, tasks),
        *(_pairs(task) for task in tasks),
        "## Best combinations",
        "The best trained one, whose number flatters it a little because it was chosen by it, and"
        " the best of all combinations by the sum of effects, which holds as far as the parts do"
        " not interact.",
        _best(plan, tasks),
        "## Cost",
        costs.about(tasks),
        *(costs.table(plan, tasks, f) for f in range(len(FACTORS))),
        "## All cells",
        _cells(plan, runs),
        *_missing(plan, runs, without),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _about(plan: Plan, runs: Sequence[Measured]) -> str:
    order, seeds = len(plan.factors[0]), sorted({n for one in runs for n in _seeds(one)})
    hours = sum(sum(one.seconds) for one in runs) / 3600
    commits = sorted({commit for one in runs for commit in one.commits})
    processors = sorted({name for one in runs for name in one.processors})
    number = " to ".join(map(str, dict.fromkeys((seeds[0], seeds[-1])))) if seeds else "no"
    number += " seed reports" if seeds == [1] else " seeds report"
    squares = "a Latin square" if plan.squares == 1 else f"{plan.squares} Latin squares"
    return (
        f"Written by `{plan.command}` from the records in `store/`; do not edit. {order} norms,"
        f" {order} quantisers and {order} feed-forward layers, {len(plan.cells)} of their"
        f" {len(plan.all)} combinations ({squares}), with `mixer={plan.mixer}`. The small tasks are"
        f" those of [profile.md](profile.md); the language models have `scale=small`. {number}"
        f". {hours:.1f} hours on one core of {', '.join(processors)}; code"
        f" {', '.join(commits)}. Feed-forward layers have widths at which a token costs them 6 d²"
        " multiplications, as far as their settings allow. QDyT's α warms up for about a tenth of a"
        " run."
    )


def _seeds(runs: Measured) -> set[int]:
    return {len(by_seed) for by_seed in runs.responses.values()}


def _reading(plan: Plan, tasks: Sequence[Task]) -> str:
    unit = "Scores are accuracies above a guess, as shares of what is left (higher is better)."
    if any(task.runs.text for task in tasks):
        unit += " The language model's response is its test loss in nats (lower is better)."
    rule = " `qdyt` is evaluated with its running mean, the rule of its paper."
    return (
        f"{unit} An effect is the difference of a level from the mean over the levels of its"
        " factor, by least squares; each level was trained with all levels of the two other"
        " factors. ± is half of Student's interval at 95% from the rest of the additive fit, so"
        " what the parts do together counts as noise there. In brackets is the standard error"
        " from seeds alone, which is that of these combinations and these rates. **Bold**: differs"
        " from the mean after Holm's correction for all levels of the task. A score near 0 or 1"
        " cannot fall or rise, which looks like an interaction."
        f"{rule if 'qdyt' in plan.factors[0] else ''}"
    )


def effects(plan: Plan, tasks: Sequence[Task], factor: int) -> list[str]:
    """Title and table of the effects of a factor's levels, a column for each task."""
    head = [FACTORS[factor], *(_title(task) for task in tasks)]
    body = []
    for level in plan.factors[factor]:
        cells = [_effect(task.fit.effects[factor].get(level), task) for task in tasks]
        body.append([code(level), *cells])
    return [f"### {TITLES[factor]}", grid(head, body)]


def _title(task: Task) -> str:
    return f"{task.runs.task} ({'loss' if task.runs.text else 'score'})"


def _effect(effect: Effect | None, task: Task) -> str:
    if effect is None:
        return "–"
    text = f"{_signed(effect.value, task)} ± {_plain(effect.half, task)}"
    if effect.seeds is not None:
        text += f" ({_plain(effect.seeds, task)})"
    return Markdown(f"**{text}**") if effect.significant else text


def _plain(value: float, task: Task) -> str:
    return f"{value:.{3 if task.runs.text else 2}f}"


def _signed(value: float, task: Task) -> str:
    return f"{value:+.{3 if task.runs.text else 2}f}"


def explained(tasks: Sequence[Task]) -> str:
    """Table of the fits: mean, R², parts of the factors, rest, noise, lack of fit."""
    head = ["task", "cells", "mean", "R²", "by chance", *(f"{name} (p)" for name in FACTORS)]
    head += ["rest of a cell", "noise of a run", "lack of fit"]
    body = []
    for task in tasks:
        fit, noise = task.fit, task.fit.noise
        row = [_title(task), str(len(fit.cells)), _plain(fit.mean, task), f"{fit.explained:.2f}"]
        row += [f"{fit.by_chance:.2f}", *(f"{s.part:.2f} ({_p(s.p)})" for s in fit.shares)]
        row += [_plain(fit.deviation, task), _plain(noise.std, task) if noise else "one seed"]
        body.append([*row, _lack(fit.lack)])
    return grid(head, body)


def _lack(lack: Lack | None) -> str:
    if lack is None:
        return "not tested"
    p = _p(lack.p)
    shown = p if p.startswith("<") else f"= {p}"
    return f"F({lack.freedom[0]}, {lack.freedom[1]}) = {lack.f:.1f}, p {shown}"


def _p(p: float) -> str:
    return "<0.001" if p < 0.001 else f"{p:.2g}"


def _explaining(tasks: Sequence[Task]) -> str:
    text = (
        "R² is the part of the variation between cells that the sum of the three effects explains,"
        " «by chance» what it would be on average if no part did anything; then each factor's part"
        " of it with p of its F-test (Holm's correction within the task). The rest of a cell is a"
        " standard deviation; that of a run is about its cell, without what a seed does to all"
        " cells. Lack of fit tests whether the rest is more than the noise of seeds: a small p says"
        " that the parts interact, or that the choice of the rate, which one seed made, changed"
        " cells. The noise is taken to be the same in all cells; near 0 and 1 it is smaller."
    )
    single = [task.runs.task for task in tasks if task.fit.noise is None]
    if single:
        text += f" Without a second seed there is no such test for {', '.join(single)}."
    return text


def _together(plan: Plan, tasks: Sequence[Task]) -> str:
    text = (
        "A deviation is how far the cells with two levels lie from the sum of their effects, as if"
        " only the listed pairs deviated. Listed are pairs whose interval leaves out 0 after Holm's"
        " correction for all pairs of the task, each tested beside those listed before it."
    )
    if plan.squares == 1:
        text += (
            " **In one Latin square the pairs are confounded:** each cell is of one pair of norm"
            " and quantiser, one of norm and feed-forward layer and one of quantiser and"
            " feed-forward layer, so a deviation may be that of any of the three, or of the cell"
            " alone; all three stand in its row. Likewise an interaction of two factors enters the"
            " effects of the third. `squares=2` tells the pairs apart."
        )
    else:
        text += (
            f" Each pair has {plan.squares} cells with different levels of the third factor. What"
            " all three factors do together is not told apart from pairs, and a pair that"
            " deviates moves the estimates of pairs that share a cell with it."
        )
    return text


def _pairs(task: Task) -> str:
    found = task.pairs
    error = "seeds" if found.by_seeds else "the rest of the fit, with one seed a run"
    text = (
        f"**{_title(task)}**: {len(found.found) or 'none'} of {found.tested} deviations; errors"
        f" from {error}. A pair has to deviate by about {_plain(found.least, task)} to be listed."
    )
    if found.full and found.found:
        text += (
            " The search ended because pairs may use a third of the degrees of freedom of the"
            " rest: many cells deviate, and the effects above describe averages only."
        )
    if not found.found:
        return text
    return (
        f"{text}\n\n{grid(['pair', 'deviation', 'cells'], [_pair(p, task) for p in found.found])}"
    )


def _pair(pair: Pair, task: Task) -> list[str]:
    value = f"{_signed(pair.value, task)} ± {_plain(pair.half, task)}"
    return [Markdown(" or ".join(map(_name, pair.names))), value, str(pair.cells)]


def _name(name: Name) -> str:
    chosen = zip(name.factors, name.levels, strict=True)
    return " × ".join(f"`{FACTORS[f]}={level}`" for f, level in chosen)


def _best(plan: Plan, tasks: Sequence[Task]) -> str:
    body = []
    for task in tasks:
        sign = 1 if task.runs.text else -1
        means = dict(zip(task.fit.cells, map(float, task.fit.y), strict=True))
        best = min(means, key=lambda cell: sign * means[cell])
        sums = {cell: s for cell in plan.all if (s := task.fit.predict(cell)) is not None}
        most = min(sums, key=lambda cell: sign * sums[cell])
        trained = _plain(means[most], task) if most in means else "not trained"
        row = [_title(task), _named(best), _plain(means[best], task)]
        body.append([*row, _named(most), _plain(sums[most], task), trained])
    head = ["task", "best trained", "measured", "best by effects", "sum of effects", "measured"]
    return grid(head, body)


def _named(cell: Cell) -> Markdown:
    return Markdown(", ".join(f"`{level}`" for level in cell))


def _cells(plan: Plan, runs: Sequence[Measured]) -> str:
    body = []
    for cell in plan.cells:
        row: list[str] = [code(level) for level in cell]
        for one in runs:
            values = one.responses.get(cell)
            mean = statistics.fmean(values.values()) if values else None
            rate = f" (rate {one.rates[cell]:g})" if cell in one.rates else ""
            row.append("–" if mean is None else f"{number(mean)}{rate}")
        body.append(row)
    return grid([*FACTORS, *(one.task for one in runs)], body)


def _missing(plan: Plan, runs: Sequence[Measured], without: Sequence[str]) -> list[str]:
    lines = [f"- {line}" for line in without]
    for one in runs:
        for why in dict.fromkeys(one.missing.values()):
            short = [_named(cell) for cell in plan.cells if one.missing.get(cell) == why]
            lines.append(f"- {one.task}, {why}: {'; '.join(short)}")
    if not lines:
        return []
    text = "Cells without a response were refused, did not stay finite, or are not trained yet:"
    return ["## Missing", text, "\n".join(lines)]
