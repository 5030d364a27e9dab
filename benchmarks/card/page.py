"""The card of a mixer: what it is, what it learns, its limits, state, cost and oracle."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Any

from benchmarks.card.failures import failures
from benchmarks.card.records import Profile, Profiles, Result
from benchmarks.variant import title, words
from chimera.report.bootstrap import improvement, iqm
from chimera.report.digits import count
from chimera.report.stats import paired, spread
from chimera.report.text import grid

COMMAND = "python -m benchmarks cards"
#: Mixer that the others are compared with.
REFERENCE = "attention"
#: Lengths of docs/cost.md that a card prints.
LENGTHS = ("1024", "4096")


@dataclass(frozen=True)
class Facts:
    """Results of other benchmarks, by mixer: of `mixers` (cost) and of `forms` (errors, state)."""

    cost: dict[str, Any]
    forms: dict[str, Any]
    machine: str


def page(profile: Profile, profiles: Profiles, facts: Facts) -> str:
    """Contents of docs/cards/mixer-<name>.md."""
    name = profile.mixer
    reference = profiles.by_mixer.get(REFERENCE)
    limits = failures(profile, reference)
    parts = [
        f"# mixer={name}",
        f"````text\n{described(name)}\n````",
        "## What it learns",
        about(profile, profiles),
        f"![scores of {name}](mixer-{name}.svg)",
        grid(*results(profile, reference)),
        aggregate(profile, reference),
        same(profile, reference),
        "## What it cannot do",
        "Read off the numbers above and those of the runs, by fixed rules"
        " ([`failures.py`](../../benchmarks/card/failures.py)).",
        "\n".join(f"- {line}" for line in limits) or "- No rule finds a limit on these tasks.",
        *parts_of_tasks(profile),
        *(part for other in profiles.variants(name) for part in variant(other, profile, facts)),
        "## State and cost",
        *state(name, facts),
        *cost(name, facts),
        "## Oracle",
        oracle(name, facts),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def described(name: str) -> str:
    """Equation, source, options and partners, as `train.py list <name>` prints them."""
    from chimera.model.card import card  # imports torch

    return card("mixer", name, 92)


def about(profile: Profile, profiles: Profiles) -> str:
    """How the numbers came about."""
    seeds = sorted({len(result.runs) for result in profile.results.values()})
    number = " to ".join(map(str, dict.fromkeys((seeds[0], seeds[-1]))))
    position = "without a position" if profile.position == "none" else f"with {profile.position}"
    return (
        f"Written by `{COMMAND}` from the records in `store/`; do not edit. Two layers of"
        f" `preset=profile` {position} on [small tasks](../profile.md). The rate is the best of"
        f" {max(len(r.rates) for r in profile.results.values())} on a seed of its own; {number}"
        f" fresh seeds report. A score is the accuracy above a guess, as a share of what is left."
        f" Intervals are Student's at 95 % over seeds; the band of the picture too."
        f" {profile.hours:.1f} hours on one core of {', '.join(profiles.processors)}."
    )


def results(profile: Profile, reference: Profile | None) -> tuple[list[str], list[list[str]]]:
    """Head and cells of the table of tasks."""
    other = reference if reference is not None and reference.mixer != profile.mixer else None
    head = ["task", "rate", "accuracy", "95% interval", "score", "guess", "most frequent"]
    head += ["solved at step", *([f"score less {other.mixer}'s", "95% interval"] if other else [])]
    body = []
    for task, result in profile.results.items():
        found = spread(list(result.accuracies.values()))
        assert found is not None
        low, high = found.interval or (found.mean, found.mean)
        ends = (max(0.0, low), min(1.0, high)) if len(result.runs) > 1 else None
        row = [task, f"{result.rate:g}", f"{found.mean:.3f}", interval(ends)]
        row += [f"{mean_score(result):.2f}", f"{result.chance:.3f}", f"{result.majority:.3f}"]
        row.append(solved(result))
        if other:
            row += _difference(result, other.results.get(task))
        body.append(row)
    return head, body


def _difference(result: Result, other: Result | None) -> list[str]:
    found = paired(result.scores, other.scores) if other else None
    if found is None:
        return ["–", ""]
    return [f"{found.mean:+.2f}", interval(found.interval, sign=True)]


def interval(ends: tuple[float, float] | None, *, sign: bool = False) -> str:
    """Both ends with two or three decimals; empty without."""
    if ends is None:
        return ""
    return " to ".join(f"{end:+.2f}" if sign else f"{end:.3f}" for end in ends)


def mean_score(result: Result) -> float:
    """Mean of the scores over seeds."""
    return statistics.fmean(result.scores.values())


def solved(result: Result) -> str:
    """Step of solution: the median if all seeds were solved, else how many."""
    steps = result.solved
    if not steps:
        return "–"
    if len(steps) == len(result.runs):
        return f"{statistics.median(steps):.0f}"
    return f"{len(steps)} of {len(result.runs)} seeds"


def aggregate(profile: Profile, reference: Profile | None) -> str:
    """Sentence on the interquartile mean over all tasks, and on how often it beats attention."""
    found = iqm(profile.scores)
    text = f"Interquartile mean of all scores {found.value:.2f}"
    if found.low is not None:
        text += f" ({found.low:.2f} to {found.high:.2f}, bootstrap of the seeds within each task)"
    if reference is None or reference.mixer == profile.mixer:
        return f"{text}."
    share = improvement(profile.scores, reference.scores)
    text += f"; a run of it is better than one of `{reference.mixer}` with probability"
    text += f" {share.value:.2f}"
    return f"{text} ({share.low:.2f} to {share.high:.2f})." if share.low is not None else f"{text}."


def same(profile: Profile, reference: Profile | None) -> str:
    """Sentence on tasks whose runs are those of the reference to the last digit; empty without."""
    if reference is None or reference.mixer == profile.mixer:
        return ""
    equal = [t for t, scores in profile.scores.items() if scores == reference.scores.get(t)]
    if not equal:
        return ""
    return (
        f"On {', '.join(equal)} each run of `{profile.mixer}` has the numbers of one of"
        f" `{reference.mixer}` to the last digit: what tells the two apart has no effect there,"
        " and was not tested."
    )


def parts_of_tasks(profile: Profile) -> list[str]:
    """Tables of the tasks whose test has parts: lengths, numbers of pairs."""
    found = []
    for task, result in profile.results.items():
        groups = {name: value for name, value in result.groups.items() if value == value}
        if len(groups) > 1:
            names = [name.replace("_", " ") for name in groups]
            values = [f"{value:.3f}" for value in groups.values()]
            found.append(grid([task, *names], [["accuracy", *values]]))
    return ["## By length and number", *found] if found else []


def variant(other: Profile, profile: Profile, facts: Facts) -> list[str]:
    """Section on the mixer with options, compared with the plain one seed by seed.

    Args:
        other: of the mixer with options.
        profile: of the plain mixer.
        facts: of which a variant has something only if it was measured under its own name.
    """
    name, rows = other.mixer, (facts.forms.get("rows", {}), facts.cost.get("rows", {}))
    told = [tell for tell, row in zip((state, cost), rows, strict=True) if name in row]
    return [
        f"## {title(name)}",
        f"`{' '.join(words(name))}`, trained in the same way"
        f" (`python -m benchmarks profile mixer={name}`); differences are from plain"
        f" `{profile.mixer}` on the same seeds. {other.hours:.1f} hours.",
        grid(*results(other, profile)),
        aggregate(other, profile),
        same(other, profile),
        *(line for tell in told for line in tell(name, facts)),
    ]


def state(name: str, facts: Facts) -> list[str]:
    """Bytes that a layer keeps of a text, and bytes per token of it."""
    sizes = facts.forms.get("rows", {}).get(name, {}).get("state_bytes")
    if not sizes:
        return ["`python -m benchmarks forms` has not weighed its state."]
    head = ["tokens of context", *(f"{int(t):,}" for t in sizes)]
    body = [
        ["bytes of the state, a layer", *(f"{count(size)}B" for size in sizes.values())],
        ["bytes per token of context", *(f"{size / int(t):,.1f}" for t, size in sizes.items())],
    ]
    return [
        f"A layer {facts.forms['dim']} wide with {facts.forms['heads']} heads, fp32, one text"
        " (`python -m benchmarks forms`):",
        grid(head, body),
    ]


def cost(name: str, facts: Facts) -> list[str]:
    """Time and memory of a training step by length, from docs/cost.md's data."""
    rows = facts.cost.get("rows", {})
    row, other = rows.get(name), rows.get(REFERENCE)
    if not row:
        return ["Its time is not in [cost.md](../cost.md) yet (`python -m benchmarks mixers`)."]
    cells = [_cost(row, other if name != REFERENCE else None, t) for t in LENGTHS]
    return [
        f"Forward and backward pass at width 256 on {facts.machine}, from [cost.md](../cost.md):"
        f" {'; '.join(cells)}. Time grows as t^{row['time_exponent']:.2f}."
    ]


def _cost(row: dict[str, Any], other: dict[str, Any] | None, length: str) -> str:
    seconds = row["seconds"].get(length)
    if seconds is None:
        return f"{int(length):,} tokens not measured"
    text = f"{int(length):,} tokens {1e3 * seconds:.0f} ms, {row['bytes'][length] / 1e6:.0f} MB"
    if other and length in other["seconds"]:
        text += f" ({seconds / other['seconds'][length]:.2f} × the time of `{REFERENCE}`)"
    return text


def oracle(name: str, facts: Facts) -> str:
    """What the mixer is held against, and the largest error found."""
    row = facts.forms.get("rows", {}).get(name)
    if not row:
        return "`python -m benchmarks forms` has not compared its forms."
    tests = row["tests"]
    text = (
        f"All tokens at once against one at a time from the state, {facts.forms['tokens']} tokens,"
        f" largest difference over largest output: {row['decoded_fp64']:.1e} in float64,"
        f" {row['decoded_fp32']:.1e} in float32."
    )
    if error := row.get("naive_fp64"):
        text += f" Against the naive recurrence of its tests {error:.1e} in float64."
    if tests["file"]:
        text += f" Its tests: «{tests['about']}» ([`{tests['file']}`](../../{tests['file']}))."
    return text
