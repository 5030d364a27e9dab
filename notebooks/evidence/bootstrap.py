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
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from chimera.errors import UserError

#: Scores by task and seed; a higher score is better.
Scores = Mapping[str, Mapping[int, float]]
Array = NDArray[np.float64]
#: Confidence of intervals, and number of draws of the bootstrap.
LEVEL = 0.95
DRAWS = 10_000
#: Share of the scores that the interquartile mean leaves out at each end.
TRIMMED = 0.25


@dataclass(frozen=True)
class Estimate:
    """An aggregate with its confidence interval.

    Args:
        value: of the seeds as they are.
        low, high: ends of the interval; None if a task has a single seed.
        seeds: smallest number of seeds of a task.
        tasks: number of tasks.
    """

    value: float
    low: float | None
    high: float | None
    seeds: int
    tasks: int

    def excludes(self, value: float) -> bool:
        """Whether the interval leaves a value out; False without an interval."""
        return self.low is not None and self.high is not None and not self.low <= value <= self.high


def interquartile_mean(scores: ArrayLike) -> Array:
    """Mean of the middle half along the last axis: [… n] to […]; ⌊n/4⌋ are left out at each end."""
    from scipy.stats import trim_mean  # takes a second to import

    trimmed: Array = trim_mean(np.asarray(scores, dtype=np.float64), TRIMMED, axis=-1)
    return trimmed


def share_better(a: ArrayLike, b: ArrayLike) -> Array:
    """Share of pairs in which a is greater, ties half: [… m] and [… n] to […] (Mann-Whitney)."""
    first, second = (np.asarray(scores, dtype=np.float64) for scores in (a, b))
    return (np.sign(first[..., :, None] - second[..., None, :]).mean((-1, -2)) + 1) / 2


def mean_score(scores: Scores, *, draws: int = DRAWS, seed: int = 0) -> Estimate:
    """Mean over tasks of the mean over seeds."""
    return _estimate([scores], lambda one: _mean_of_tasks(one), draws, seed)


def iqm(scores: Scores, *, draws: int = DRAWS, seed: int = 0) -> Estimate:
    """Interquartile mean of all scores of all tasks."""
    return _estimate([scores], _iqm, draws, seed)


def iqm_difference(a: Scores, b: Scores, *, draws: int = DRAWS, seed: int = 0) -> Estimate:
    """Interquartile mean of a less that of b, over their common seeds, which are drawn together."""
    return _estimate(common(a, b), lambda x, y: _iqm(x) - _iqm(y), draws, seed, paired=True)


def improvement(
    a: Scores, b: Scores, *, paired: bool = True, draws: int = DRAWS, seed: int = 0
) -> Estimate:
    """Probability that a run of a is better than one of b in the same task, mean over tasks.

    Args:
        a, b: of the same tasks.
        paired: use common seeds only and draw them together; else all seeds, drawn apart.
        draws: of the bootstrap.
        seed: of the draws.
    """
    both = common(a, b) if paired else [a, b]
    return _estimate(both, _improvement, draws, seed, paired=paired)


def rank_correlation(
    ours: Scores, published: Mapping[str, float], *, draws: int = DRAWS, seed: int = 0
) -> Estimate:
    """Spearman's correlation of our mean scores with published ones.

    Args:
        ours: scores by part (in place of the task) and seed.
        published: one number of each part; parts that only one of the two has are left out.
        draws: of our seeds; the published numbers have no spread to draw from.
        seed: of the draws.
    """
    names = sorted(ours.keys() & published.keys())
    if len(names) < 3:
        raise UserError(f"a rank correlation needs three common rows, and there are {len(names)}")
    there = _ranks(np.array([published[name] for name in names]))

    def correlation(parts: Sequence[Array]) -> Array:
        here = _ranks(np.stack([part.mean(-1) for part in parts], -1))
        return _pearson(here, there)

    return _estimate([{name: ours[name] for name in names}], correlation, draws, seed)


def common(a: Scores, b: Scores) -> list[Scores]:
    """Both with their common tasks and, in each, their common seeds.

    Raises:
        UserError: they have no task in common, or a task without a common seed.
    """
    tasks = [task for task in a if task in b]
    seeds = {task: sorted(a[task].keys() & b[task].keys()) for task in tasks}
    bare = [task for task in tasks if not seeds[task]]
    if not tasks or bare:
        which = f"seed of {', '.join(bare)}" if bare else "task"
        raise UserError(f"the two have no common {which}; compare runs of the same tasks and seeds")
    return [{task: {s: one[task][s] for s in seeds[task]} for task in tasks} for one in (a, b)]


def _estimate(
    samples: Sequence[Scores],
    statistic: Callable[..., Array],
    draws: int,
    seed: int,
    *,
    paired: bool = False,
) -> Estimate:
    """Value of a statistic of lists of tasks [… seeds], and its expanded percentile interval."""
    tasks = [[np.array(list(by.values()), np.float64) for by in one.values()] for one in samples]
    sizes = [len(task) for one in tasks for task in one]
    if not sizes or not min(sizes):
        raise UserError("a task without a score has no estimate; leave it out")
    value = float(statistic(*tasks))
    seeds = min(sizes)
    number = len(tasks[0])
    if seeds < 2:
        return Estimate(value, None, None, seeds, number)
    generator = np.random.default_rng(seed)
    drawn: list[list[Array]] = []
    chosen: list[Any] = []
    for one in tasks:
        if not (paired and chosen):
            chosen = [generator.integers(0, len(t), (draws, len(t))) for t in one]
        drawn.append([task[index] for task, index in zip(one, chosen, strict=True)])
    freedom = sum(size - 1 for size in sizes) // (len(tasks) if paired else 1)
    tail = _tail(seeds, freedom)
    low, high = np.quantile(statistic(*drawn), [tail, 1 - tail])
    return Estimate(value, float(low), float(high), seeds, number)


def _tail(seeds: int, freedom: int) -> float:
    """Percentile of each end so that the mean of so few normal numbers is covered at LEVEL."""
    from scipy.special import ndtr, stdtrit

    quantile = stdtrit(freedom, (1 - LEVEL) / 2) * math.sqrt(seeds / (seeds - 1))
    return float(ndtr(quantile))


def _mean_of_tasks(tasks: Sequence[Array]) -> Array:
    return np.stack([task.mean(-1) for task in tasks]).mean(0)


def _iqm(tasks: Sequence[Array]) -> Array:
    return interquartile_mean(np.concatenate(tasks, -1))


def _improvement(a: Sequence[Array], b: Sequence[Array]) -> Array:
    return np.stack([share_better(x, y) for x, y in zip(a, b, strict=True)]).mean(0)


def _ranks(values: Array) -> Array:
    """Ranks along the last axis, equal values with their mean rank."""
    from scipy.stats import rankdata

    ranks: Array = rankdata(values, axis=-1)
    return ranks


def _pearson(a: Array, b: Array) -> Array:
    """Correlation along the last axis; 0 where one of the two does not vary."""
    x = a - a.mean(-1, keepdims=True)
    y = b - b.mean(-1, keepdims=True)
    scale = np.sqrt((x**2).sum(-1) * (y**2).sum(-1))
    product: Array = (x * y).sum(-1)
    return np.divide(product, scale, out=np.zeros_like(product), where=scale > 0)
