"""Estimate an aggregate over several tasks from few seeds, with bootstrap intervals.

    IQM(x) = mean of the middle half of all scores
    P(a > b) = mean over tasks of the share of pairs of seeds in which a is better, ties half

The definitions are those of R. Agarwal et al., 2021 (arXiv 2108.13264, sections 4.1 and 4.3). Each
draw takes seeds with replacement within each task, so that every draw has every task (stratified
bootstrap): the tasks are fixed, and an interval says nothing of other tasks. Two parts that were
trained on the same seeds are drawn together (paired), so that what a seed does to both cancels.

A percentile interval from n seeds is too short by about √((n − 1)/n) and by the normal quantile in
place of Student's. Both are mended by taking percentiles further out (the expanded percentile
interval of T. Hesterberg, 2015, arXiv 1411.5279). No percentile lies outside the
scores: from one task with n seeds an interval covers at most 1 − 2^(1 − n), so a single task has
Student's interval in its place (`stats.Spread.interval`). All numbers are float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr, stdtrit
from scipy.stats import rankdata, trim_mean

from chimera.report.stats import LEVEL

#: Scores by task and seed; a higher score is better.
Scores = Mapping[str, Mapping[int, float]]
Array = NDArray[np.float64]
#: Number of draws of the bootstrap.
DRAWS = 10_000
#: Share of the scores that the interquartile mean leaves out at each end.
TRIMMED = 0.25


class Estimate(NamedTuple):
    """An aggregate and the ends of its interval; without these if a task has a single seed."""

    value: float
    low: float | None = None
    high: float | None = None


def iqm(scores: Scores, *, draws: int = DRAWS) -> Estimate:
    """Interquartile mean of all scores of all tasks."""
    return estimate([scores], interquartile_mean, draws=draws)


def iqm_difference(a: Scores, b: Scores, *, draws: int = DRAWS) -> Estimate:
    """Interquartile mean of a less that of b, over their common seeds, which are drawn together."""

    def less(x: Sequence[Array], y: Sequence[Array]) -> Array:
        return interquartile_mean(x) - interquartile_mean(y)

    return estimate(common(a, b), less, draws=draws, paired=True)


def improvement(a: Scores, b: Scores, *, draws: int = DRAWS) -> Estimate:
    """Probability that a run of a is better than one of b in the same task, mean over tasks.

    Common seeds are drawn together.
    """
    return estimate(common(a, b), share_better, draws=draws, paired=True)


def rank_correlation(
    ours: Scores, published: Mapping[str, float], *, draws: int = DRAWS
) -> Estimate:
    """Spearman's correlation of our mean scores with published ones.

    Args:
        ours: scores by part (in place of the task) and seed.
        published: one number of each part; parts that only one of the two has are left out.
        draws: of our seeds; the published numbers have no spread to draw from.
    """
    names = sorted(ours.keys() & published.keys())
    there = [published[name] for name in names]

    def correlation(parts: Sequence[Array]) -> Array:
        return spearman(np.stack([part.mean(-1) for part in parts], -1), there)

    return estimate([{name: ours[name] for name in names}], correlation, draws=draws)


def interquartile_mean(tasks: Sequence[ArrayLike]) -> Array:
    """Mean of the middle half of all tasks' scores [… n]; ⌊n/4⌋ are left out at each end."""
    trimmed: Array = trim_mean(np.concatenate(tasks, -1), TRIMMED, axis=-1)
    return trimmed


def share_better(a: Sequence[ArrayLike], b: Sequence[ArrayLike]) -> Array:
    """Share of pairs of scores [… m] and [… n] in which a is greater, ties half; mean of tasks."""
    pairs = [
        np.asarray(x)[..., :, None] - np.asarray(y)[..., None, :] for x, y in zip(a, b, strict=True)
    ]
    return (np.stack([np.sign(pair).mean((-1, -2)) for pair in pairs]).mean(0) + 1) / 2


def spearman(a: ArrayLike, b: ArrayLike) -> Array:
    """Rank correlation of [… n] and [n] along the last axis; 0 where all values are equal."""
    x, y = (rankdata(values, axis=-1) - (np.shape(values)[-1] + 1) / 2 for values in (a, b))
    scale = np.sqrt((x**2).sum(-1) * (y**2).sum(-1))
    found: Array = np.divide(x @ y, scale, out=np.zeros_like(scale), where=scale > 0)
    return found


def common(a: Scores, b: Scores) -> list[Scores]:
    """Both with their common tasks and, in each, their common seeds."""
    seeds = {task: sorted(a[task].keys() & b[task].keys()) for task in a if task in b}
    return [{task: {s: one[task][s] for s in of} for task, of in seeds.items()} for one in (a, b)]


def estimate(
    samples: Sequence[Scores], statistic: Callable[..., Array], *, draws: int, paired: bool = False
) -> Estimate:
    """Value of a statistic of lists of tasks [… seeds], and its expanded percentile interval.

    Args:
        samples: one list of tasks each.
        statistic: of them.
        draws: of the bootstrap.
        paired: draw the seeds of all samples together.
    """
    tasks = [[np.array(list(by.values()), np.float64) for by in one.values()] for one in samples]
    sizes = [len(task) for one in tasks for task in one]
    seeds = min(sizes, default=0)
    if not seeds:
        raise ValueError("there is no common task, or a task without a common seed")
    value = float(statistic(*tasks))
    if seeds < 2:
        return Estimate(value)
    generator = np.random.default_rng(0)
    drawn: list[list[Array]] = []
    chosen: list[Any] = []
    for one in tasks:
        if not (paired and chosen):
            chosen = [generator.integers(0, len(t), (draws, len(t))) for t in one]
        drawn.append([task[index] for task, index in zip(one, chosen, strict=True)])
    freedom = sum(size - 1 for size in sizes) // (len(tasks) if paired else 1)
    tail = float(ndtr(stdtrit(freedom, LEVEL / 2) * math.sqrt(seeds / (seeds - 1))))
    low, high = np.quantile(statistic(*drawn), [tail, 1 - tail])
    return Estimate(value, float(low), float(high))
