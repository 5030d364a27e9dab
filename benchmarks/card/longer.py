"""What more steps change: the same runs with a longer schedule, beside those of the profile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from benchmarks.card.records import CHANCE as GUESS
from benchmarks.card.records import Profiles, Run, above
from benchmarks.profile import STEPS
from benchmarks.variant import address
from chimera.report.escape import Markdown
from chimera.report.stats import Difference, paired, spread
from chimera.report.text import grid


@dataclass(frozen=True)
class Longer:
    """Scores of a mixer on a task after more steps than its profile has.

    Args:
        mixer, task, steps: what was trained, for how long at most.
        scores: by seed.
        solved: runs that ended early.
    """

    mixer: str
    task: str
    steps: int
    scores: dict[int, float]
    solved: int


def gather(runs: Sequence[Run], profiles: Profiles) -> list[Longer]:
    """By task, mixer and steps, of mixers that have a profile of the same rate.

    Args:
        runs: of `python -m benchmarks longer`.
        profiles: of the same store.
    """
    found = []
    for task, mixer, steps in sorted({(run.task, run.mixer, run.limit) for run in runs}):
        profile = profiles.by_mixer.get(mixer)
        result = profile.results.get(task) if profile else None
        own = [
            run
            for run in runs
            if (run.task, run.mixer, run.limit) == (task, mixer, steps)
            and result is not None
            and run.rate == result.rate
        ]
        if own:
            scores = {run.seed: above(run.accuracy, run.record["metrics"][GUESS]) for run in own}
            solved = sum(run.solved is not None for run in own)
            found.append(Longer(mixer, task, steps, dict(sorted(scores.items())), solved))
    return found


def section(rows: Sequence[Longer], profiles: Profiles) -> list[str]:
    """Paragraphs of choose.md."""
    if not rows:
        return []
    head = ["task", "mixer", "score of the profile", "steps", "score", "95% interval", "gain"]
    return [
        "## What more steps change",
        "The seeds that report, at the same learning rate, with a longer schedule"
        " (`python -m benchmarks longer`). A score that rises says that the profile's low one is of"
        " its budget; one that stays, that it is the mixer's.",
        grid(head, [_row(row, profiles) for row in rows]),
    ]


def _row(row: Longer, profiles: Profiles) -> list[str]:
    before = profiles.by_mixer[row.mixer].results[row.task].scores
    after, gain = spread(list(row.scores.values())), paired(row.scores, before)
    assert after is not None
    ends = ""
    if after.interval is not None:
        ends = f"{after.interval[0]:.2f} to {min(1.0, after.interval[1]):.2f}"
    return [
        row.task,
        Markdown(f"[`{row.mixer}`]({address(row.mixer)})"),
        f"{fmean(before.values()):.2f}",
        f"{row.steps:,}",
        f"{after.mean:.2f}",
        ends,
        "" if gain is None else signed(gain),
    ]


def sentence(rows: Sequence[Longer], profiles: Profiles, mixers: Sequence[str]) -> str:
    """README: on which task one of these mixers gains most by more steps; empty without a row.

    Args:
        rows: of `gather`.
        profiles: of the same store.
        mixers: names.
    """
    gains = {}
    for row in rows:
        before = profiles.by_mixer[row.mixer].results[row.task].scores
        if row.mixer in mixers and (gain := paired(row.scores, before)) and gain.mean > 0:
            gains[gain.mean] = (row, fmean(before.values()))
    if not gains:
        return ""
    row, before_it = gains[max(gains)]
    return (
        f" Part of it is learning sooner: with {row.steps:,} steps in place of {STEPS}"
        f" `{row.mixer}` goes from {before_it:.2f} to {fmean(row.scores.values()):.2f} on"
        f" {row.task}."
    )


def signed(gain: Difference) -> str:
    """A difference with its sign and interval."""
    ends = f" ({gain.interval[0]:+.2f} to {gain.interval[1]:+.2f})" if gain.interval else ""
    return f"{gain.mean:+.2f}{ends}"


def explained(rows: Sequence[Longer], task: str, first: str, second: str) -> str:
    """What more steps say of two mixers whose order is another here than elsewhere.

    Args:
        rows: of `gather`.
        task, first, second: the first is better elsewhere, and worse in the profile.

    Returns:
        «Open.» without runs of both or if they have the same order; else what changes.
    """
    own = {(row.mixer, row.steps): row for row in rows if row.task == task}
    both = [steps for mixer, steps in own if mixer == first and (second, steps) in own]
    gap = None
    if both:
        steps = max(both)
        gap = paired(own[first, steps].scores, own[second, steps].scores)
    if gap is None:
        return "Open."
    said = f"With {steps:,} steps `{first}` less `{second}` is {signed(gap)}"
    if not gap.significant:
        return f"{said}: no difference is shown with that budget."
    if gap.mean < 0:
        return f"{said}: steps alone do not explain it. Open."
    return f"{said}: the order is one of the budget."
