"""The page that compares all mixers: which mixer for what, and our ranking beside others'."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from typing import Any

from benchmarks.card import controls, longer
from benchmarks.card.page import COMMAND, REFERENCE, Facts, mean_score, same
from benchmarks.card.published import (
    MEAN,
    Disagreement,
    Rank,
    Source,
    disagreements,
    matched,
    ranks,
)
from benchmarks.card.records import Profile, Profiles
from benchmarks.variant import address, mixer_of
from chimera.report.bootstrap import Estimate, improvement, iqm
from chimera.report.digits import count
from chimera.report.escape import Markdown
from chimera.report.stats import corrected, paired
from chimera.report.text import grid

#: Most disagreements that are listed for a source.
LISTED = 12
#: Context at which states are compared.
CONTEXT = "1024"
#: Score from which on a mixer solves a task, so that its order says nothing.
SATURATED = 0.98
#: Score below which the best mixer of a task is not recommended.
USEFUL = 0.5


def page(
    profiles: Profiles, sources: list[Source], facts: Facts, more: Sequence[longer.Longer] = ()
) -> str:
    """Contents of docs/choose.md.

    Args:
        profiles: of the run store.
        sources: whose scores stand beside ours.
        facts: state and cost.
        more: scores after more steps than the profiles have.
    """
    reference = profiles.by_mixer.get(REFERENCE)
    missing = sorted(profiles.by_mixer.keys() - {p.mixer for p in profiles.complete()})
    parts = [
        "# Which mixer for what",
        _about(profiles),
        "## For a task",
        "«As good» are mixers whose score is not shown to be lower than the best one's (paired test"
        " over seeds, Holm's correction within the task). With so few seeds that is a weak claim: a"
        " mixer that is as good here may be worse. «Smallest» has the fewest bytes of state after"
        f" {int(CONTEXT):,} tokens among them. «Solved by» counts the runs of a mixer that ended"
        " early, with validation accuracy 0.99: where some seeds find the solution and others do"
        " not, a mean says little.",
        grid(*_for_tasks(profiles, facts)),
        "## All scores",
        grid(*_scores(profiles, facts)),
        "A score is the accuracy above a guess, as a share of what is left, mean over seeds. «IQM»"
        " is the interquartile mean of all scores of a mixer with a 95% interval, «better» the"
        f" probability that a run is better than one of `{REFERENCE}` (both by a bootstrap of the"
        " seeds within each task; the tasks are fixed). «State» is that of one layer of 64 after"
        f" {int(CONTEXT):,} tokens, «time» the training step at 4096 tokens relative to"
        f" `{REFERENCE}` ([cost.md](cost.md)).",
        "\n".join(f"- {said}" for p in profiles.complete() if (said := same(p, reference))),
        f"Without all tasks yet: {', '.join(f'`{m}`' for m in missing)}." if missing else "",
        _at_the_end(profiles),
        *controls.section(profiles),
        *longer.section(more, profiles),
        "## Beside published scores",
        *(part for source in sources for part in _beside(profiles, source, more)),
        *_apart(sources),
        *_left_out(profiles),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _about(profiles: Profiles) -> str:
    return (
        f"Written by `{COMMAND}` from the records in `store/`; do not edit."
        f" {_number(profiles)} on {len(profiles.tasks)} [small tasks](profile.md), two"
        f" layers of width 64; at least {profiles.seeds} seeds report at a learning rate that"
        " another seed chose."
        f" {profiles.hours:.1f} hours on one core of {', '.join(profiles.processors)}; code"
        f" {', '.join(profiles.commits)}. Each name leads to the mixer's card."
        " [How to choose parts](choosing.md) has the other groups."
    )


def _at_the_end(profiles: Profiles) -> str:
    """Sentence on how often the highest rate was the best of those tried; empty if never."""
    results = [(t, r) for p in profiles.by_mixer.values() for t, r in p.results.items() if r.rates]
    ends = Counter(task for task, r in results if r.rate == max(r.rates))
    if not ends:
        return ""
    rates = ", ".join(f"{rate:g}" for rate in results[0][1].rates)
    where = ", ".join(f"{task} ({number})" for task, number in ends.most_common())
    return (
        f"In {ends.total()} of {len(results)} cases the highest rate of {rates} is the chosen one:"
        f" {where}. A higher one was not tried and may be better there."
    )


def _number(profiles: Profiles) -> str:
    """How many mixers, and how many rows are of the same ones with options."""
    plain = len(profiles.plain)
    more = len(profiles.by_mixer) - plain
    text = f"{plain} mixer{'s' * (plain != 1)}"
    if more:
        text += f" and {more} variant{'s' * (more != 1)} with options (`mixer+option=value`)"
    return text


def _link(mixer: str) -> Markdown:
    return Markdown(f"[`{mixer}`]({address(mixer)})")


def _links(mixers: list[str]) -> Markdown:
    return Markdown(", ".join(map(_link, mixers)) or "–")


def _for_tasks(profiles: Profiles, facts: Facts) -> tuple[list[str], list[list[str]]]:
    body = []
    for task in profiles.tasks:
        those = [p for p in profiles.by_mixer.values() if task in p.results]
        best = max(those, key=lambda p: mean_score(p.results[task]))
        equal = as_good(those, best, task)
        weighed = {m: size for m in equal if (size := _state(m, facts)) is not None}
        smallest = min(weighed, key=lambda m: weighed[m], default="")
        score = mean_score(best.results[task])
        name = _link(best.mixer) if score >= USEFUL else Markdown(f"none ({_link(best.mixer)})")
        others = [mixer for mixer in equal if mixer != best.mixer]
        small = f"{_link(smallest)} ({count(weighed[smallest])}B)" if smallest else "–"
        solvers = Markdown(_solvers(those, task))
        body.append([task, name, f"{score:.2f}", _links(others), Markdown(small), solvers])
    return ["task", "best", "score", "as good", "smallest", "solved by"], body


def _solvers(those: list[Profile], task: str) -> str:
    """Mixers of which a run solved the task, and how many runs did, most first."""
    results = [(p.mixer, p.results[task]) for p in those]
    found = [(len(r.solved) / len(r.runs), mixer, r) for mixer, r in results if r.solved]
    found.sort(key=lambda row: (-row[0], row[1]))
    return ", ".join(f"{_link(m)} {len(r.solved)} of {len(r.runs)}" for _, m, r in found) or "–"


def as_good(those: list[Profile], best: Profile, task: str) -> list[str]:
    """Mixers whose scores are not shown to be lower, the best one among them, best first."""
    others = [p for p in those if p is not best]
    tested = corrected([paired(best.scores[task], p.scores[task]) for p in others])
    equal = [p for p, d in zip(others, tested, strict=True) if d is None or not d.significant]
    equal.sort(key=lambda p: -mean_score(p.results[task]))
    return [best.mixer, *(p.mixer for p in equal)]


def _scores(profiles: Profiles, facts: Facts) -> tuple[list[str], list[list[str]]]:
    reference = profiles.by_mixer.get(REFERENCE)
    rows = []
    for profile in profiles.complete():
        scores = {task: profile.scores[task] for task in profiles.tasks}
        against = ""
        if reference is not None and profile is not reference:
            common = {task: reference.scores[task] for task in scores if task in reference.scores}
            against = _estimate(improvement(scores, common))
        rows.append((iqm(scores), profile, against))
    rows.sort(key=lambda row: -row[0].value)
    body = [
        [
            _link(profile.mixer),
            *(f"{mean_score(profile.results[task]):.2f}" for task in profiles.tasks),
            _estimate(estimate),
            against,
            f"{count(size)}B" if (size := _state(profile.mixer, facts)) is not None else "–",
            _time(profile.mixer, facts),
        ]
        for estimate, profile, against in rows
    ]
    return ["mixer", *profiles.tasks, "IQM", "better", "state", "time"], body


def _estimate(estimate: Estimate) -> str:
    if estimate.low is None:
        return f"{estimate.value:.2f}"
    return f"{estimate.value:.2f} ({estimate.low:.2f} to {estimate.high:.2f})"


def _state(mixer: str, facts: Facts) -> float | None:
    row: dict[str, Any] = facts.forms.get("rows", {}).get(mixer, {})
    return row.get("state_bytes", {}).get(CONTEXT)


def _time(mixer: str, facts: Facts) -> str:
    rows = facts.cost.get("rows", {})
    own, other = (rows.get(m, {}).get("seconds", {}).get("4096") for m in (mixer, REFERENCE))
    return f"{own / other:.2f} ×" if own and other else "–"


def _beside(profiles: Profiles, source: Source, more: Sequence[longer.Longer]) -> list[str]:
    original = source
    source, instead = matched(profiles, original)
    found = ranks(profiles, source)
    compared = [row for task, row in source.scores.items() if task in profiles.tasks]
    here = sorted({m for row in compared for m in row} & profiles.by_mixer.keys())
    number = len({mixer_of(m) for m in here})
    opening = f"**{source.title}** ({source.source}; {source.note}). {number} of its mixers are"
    opening += f" here: {', '.join(f'`{m}`' for m in here) or 'none'}."
    for mixer, tasks in instead.items():
        used = original.variants[mixer]
        where = f" on {', '.join(tasks)}" if used in profiles.by_mixer else ""
        opening += f" Its `{mixer}` was `{used}`, which has no record here{where}: plain `{mixer}`"
        opening += " stands in."
    if not found:
        return [opening, "Fewer than three mixers in common on every task, so no correlation."]
    number, otherwise = disagreements(profiles, source)
    tested = f"Of {number} pairs that it ranks on our tasks, {len(otherwise)} are significantly the"
    tested += " other way round here"
    lines = [_disagreement(one, profiles, more) for one in otherwise[:LISTED]]
    rest = len(otherwise) - LISTED
    lines += [f"- and {rest} more"] if rest > 0 else []
    return [opening, grid(*_ranks(found)), f"{tested}{':' if lines else '.'}", "\n".join(lines)]


def _ranks(found: list[Rank]) -> tuple[list[str], list[list[str]]]:
    body = [
        [
            "mean of all tasks" if one.task == MEAN else one.task,
            str(len(one.mixers)),
            _estimate(one.estimate),
            "" if one.chance is None else f"{one.chance:.3f}",
        ]
        for one in found
    ]
    return ["task", "mixers", "Spearman's ρ (95% interval)", "share of orders as high"], body


def _disagreement(one: Disagreement, profiles: Profiles, more: Sequence[longer.Longer]) -> str:
    results = [profiles.by_mixer[mixer].results[one.task] for mixer in (one.first, one.second)]
    if min(map(mean_score, results)) >= SATURATED:
        why = "Both solve it at our difficulty, which then ranks neither."
    else:
        why = longer.explained(more, one.task, one.first, one.second)
    below = -one.ours.mean
    return (
        f"- `{one.task}`: `{one.first}` is {one.gap:.2f} above `{one.second}` there, and"
        f" {below:.{2 if below >= 0.01 else 3}f} below it here. {why}"
    )


def _apart(sources: list[Source]) -> list[str]:
    """How far the published scores are from each other, where two print the same."""
    if len(sources) < 2:
        return []
    first, second = sources[:2]
    lines = []
    for task, scores in first.scores.items():
        common = sorted(scores.keys() & second.scores.get(task, {}).keys())
        if common:
            gaps = {m: scores[m] - second.scores[task][m] for m in common}
            most = max(common, key=lambda m: abs(gaps[m]))
            mean = statistics.fmean(abs(gap) for gap in gaps.values())
            cells = [task, str(len(common)), f"{mean:.2f}", f"{most} ({gaps[most]:+.2f})"]
            lines.append(cells)
    text = (
        f"{first.title} and {second.title} print the same tasks, and differ by (mean and largest"
        " difference over mixers, as shares):"
    )
    return [text, grid(["task", "mixers", "mean", "largest"], lines)]


def _left_out(profiles: Profiles) -> list[str]:
    if not profiles.left_out:
        return []
    return ["## Records left out", "\n".join(f"- {why}" for why in profiles.left_out)]
