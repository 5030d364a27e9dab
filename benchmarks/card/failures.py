"""What a mixer cannot do, as read off the numbers of its runs; each sentence has them."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterator

from benchmarks.card.records import Profile, Result
from chimera.report.stats import corrected, paired

#: Score below which a task is not learnt; accuracy from which a part of it is.
NOTHING, LEARNT = 0.1, 0.9
#: Fall of accuracy, from the shortest to the longest part, that is a limit.
FALL = 0.2
#: Difference of seeds, or of learning rates, that makes a result a matter of luck or tuning.
LUCK = 0.3


def failures(profile: Profile, reference: Profile | None) -> list[str]:
    """Sentences on all tasks.

    Args:
        profile: of the mixer.
        reference: of attention; None without.
    """
    found = [line for result in profile.results.values() for line in _of(result)]
    return [*found, *_against(profile, reference)]


def _of(result: Result) -> Iterator[str]:
    task, scores = f"`{result.task}`", list(result.scores.values())
    accuracy = statistics.fmean(result.accuracies.values())
    if accuracy <= result.majority:
        yield (
            f"{task}: not above always giving the most frequent answer ({_number(accuracy)} against"
            f" {_number(result.majority)})."
        )
    elif statistics.fmean(scores) < NOTHING:
        yield f"{task}: hardly above a guess ({_number(accuracy)}, guess {_number(result.chance)})."
    else:
        yield from _limits(result, task)
    if max(scores) - min(scores) >= LUCK:
        ends = sorted(result.accuracies.values())
        yield f"{task}: seeds disagree, from {_number(ends[0])} to {_number(ends[-1])}."
    rates = sorted(result.rates.values())
    if len(rates) >= 3 and rates[-1] - rates[-2] >= LUCK:
        yield (
            f"{task}: learnt at one rate only, {result.rate:g} (validation {_number(rates[-1])};"
            f" the next {_number(rates[-2])})."
        )


def _limits(result: Result, task: str) -> Iterator[str]:
    """How far what is learnt reaches: the first part that is learnt no more."""
    groups = {n: a for n, a in result.groups.items() if re.match(r"\d", n) and a == a}
    if len(groups) < 2:
        return
    (first, begin), *_, (last, end) = groups.items()
    if begin - end < FALL:
        return
    reach = [name for name, accuracy in groups.items() if accuracy >= LEARNT]
    until = f"at least {LEARNT:g} up to {_words(reach[-1])}" if reach else f"nowhere {LEARNT:g}"
    yield (
        f"{task}: {_number(begin)} at {_words(first)} falls to {_number(end)} at {_words(last)};"
        f" {until}."
    )


def _against(profile: Profile, reference: Profile | None) -> Iterator[str]:
    """Tasks on which attention is better, by the paired test, corrected for all tasks."""
    if reference is None or reference.mixer == profile.mixer:
        return
    tasks = [task for task in profile.results if task in reference.results]
    tested = corrected([paired(profile.scores[t], reference.scores[t]) for t in tasks])
    for task, difference in zip(tasks, tested, strict=True):
        if difference is not None and difference.significant and difference.mean < -NOTHING:
            yield (
                f"`{task}`: a score {-difference.mean:.2f} below that of `{reference.mixer}`"
                f" (p = {difference.corrected:.2g} after Holm's correction)."
            )


def _words(name: str) -> str:
    """`4x` as `4 ×`, `16_pairs` as `16 pairs`."""
    return re.sub(r"(?<=\d)x$", " ×", name).replace("_", " ")


def _number(value: float) -> str:
    return f"{value:.2f}"
