"""Aggregates and their intervals: known values, naive second ways, invariances, coverage."""

from __future__ import annotations

import random
import statistics

import numpy as np
import pytest
from bootstrap import (
    DRAWS,
    Estimate,
    Scores,
    common,
    estimate,
    improvement,
    interquartile_mean,
    iqm,
    iqm_difference,
    rank_correlation,
    share_better,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as oracle

from chimera.report.stats import spread

NUMBERS = st.floats(-100, 100).map(lambda x: round(x, 3))


def by_task(*columns: list[float]) -> Scores:
    return {f"task{i}": dict(enumerate(column)) for i, column in enumerate(columns)}


def excludes(found: Estimate, value: float) -> bool:
    """Whether the interval leaves a value out; False without an interval."""
    return found.low is not None and not found.low <= value <= found.high


def apart(a: Scores, b: Scores, draws: int = DRAWS) -> Estimate:
    """The probability of improvement with seeds drawn apart."""
    return estimate([a, b], share_better, draws=draws)


@st.composite
def scores(draw: st.DrawFn, seeds: int = 4, tasks: int = 3) -> Scores:
    column = st.lists(NUMBERS, min_size=seeds, max_size=seeds)
    return by_task(*(draw(column) for _ in range(tasks)))


#: The numbers of the test of rliable's metrics: four and three runs of two tasks.
X = by_task([1, 2, 1, 2], [2, 2, 1, 1])
Y = by_task([1, 2, 3], [1, 2, 3])


def test_the_published_example() -> None:
    assert iqm(X).value == 1.5
    assert iqm(Y).value == 2.0
    assert apart(X, Y).value == pytest.approx(1 / 3, rel=1e-15)


@given(st.lists(NUMBERS, min_size=1, max_size=23))
def test_the_interquartile_mean_is_that_of_the_sorted_middle(values: list[float]) -> None:
    cut = len(values) // 4
    middle = sorted(values)[cut : len(values) - cut]
    assert interquartile_mean([values]) == pytest.approx(statistics.fmean(middle), abs=1e-9)


@given(st.lists(NUMBERS, min_size=1, max_size=6), st.lists(NUMBERS, min_size=1, max_size=6))
def test_the_share_is_counted_pair_by_pair_and_is_mann_whitneys(
    a: list[float], b: list[float]
) -> None:
    points = sum(1.0 if x > y else 0.5 if x == y else 0.0 for x in a for y in b)
    assert share_better([a], [b]) == pytest.approx(points / (len(a) * len(b)), rel=1e-12, abs=1e-12)
    u = oracle.mannwhitneyu(a, b, method="asymptotic").statistic
    assert share_better([a], [b]) == pytest.approx(u / (len(a) * len(b)), rel=1e-12, abs=1e-12)


@settings(max_examples=25)
@given(scores(), scores())
def test_what_is_drawn_together_is_antisymmetric_and_free_of_scale(a: Scores, b: Scores) -> None:
    forth, back = (improvement(*pair, draws=300) for pair in ((a, b), (b, a)))
    assert forth.value + back.value == pytest.approx(1.0)
    assert forth.low is not None
    assert back.high is not None
    assert forth.low + back.high == pytest.approx(1.0)
    cubed = [{t: {s: v**3 for s, v in by.items()} for t, by in one.items()} for one in (a, b)]
    assert improvement(*cubed, draws=300) == forth  # only the order of scores counts
    doubled = iqm({t: {s: 2 * v + 1 for s, v in by.items()} for t, by in a.items()}, draws=300)
    single = iqm(a, draws=300)
    assert single.low is not None
    assert doubled.low == pytest.approx(2 * single.low + 1, abs=1e-9)
    assert iqm_difference(a, a, draws=300) == (0.0, 0.0, 0.0)


def test_what_a_seed_does_to_both_cancels_only_when_drawn_together() -> None:
    noise = np.random.default_rng(0).normal(size=(3, 8))
    a, b = by_task(*(noise + 0.1).tolist()), by_task(*noise.tolist())
    paired = iqm_difference(a, b, draws=500)
    assert paired.low == pytest.approx(0.1)
    assert excludes(paired, 0.0)
    alone, together = apart(a, b, draws=500), improvement(a, b, draws=500)
    assert alone.low is not None
    assert together.low is not None
    assert together.low > alone.low
    assert not excludes(alone, 0.5)


def naive(columns: list[list[float]], level: float, draws: int) -> tuple[float, float]:
    """The percentile interval of the interquartile mean, drawn one seed at a time."""
    random.seed(1)
    values = []
    for _ in range(draws):
        drawn = sorted(x for column in columns for x in random.choices(column, k=len(column)))
        cut = len(drawn) // 4
        values.append(statistics.fmean(drawn[cut : len(drawn) - cut]))
    values.sort()
    outside = (1 - level) / 2
    return values[round(outside * draws)], values[round((1 - outside) * draws) - 1]


def test_an_interval_worked_out_by_a_second_naive_way() -> None:
    """Five seeds of three tasks; Student's quantile of 12 degrees of freedom is 2.178813."""
    columns = [[0.61, 0.66, 0.58, 0.64, 0.60], [0.90, 0.97, 0.93, 0.88, 0.95]]
    columns.append([0.31, 0.22, 0.41, 0.35, 0.28])
    found = iqm(by_task(*columns), draws=20_000)
    # cut 3 of 15 at each end
    assert found.value == pytest.approx(
        (0.35 + 0.41 + 0.58 + 0.60 + 0.61 + 0.64 + 0.66 + 0.88 + 0.90) / 9
    )
    level = 1 - 2 * statistics.NormalDist().cdf(-2.178813 * (5 / 4) ** 0.5)
    low, high = naive(columns, level, 20_000)
    assert found.low == pytest.approx(low, abs=0.004)
    assert found.high == pytest.approx(high, abs=0.004)


def test_an_estimate_is_the_same_whenever_it_is_asked_for() -> None:
    assert iqm(X) == iqm(X)


def test_one_seed_has_a_value_and_no_interval() -> None:
    assert iqm(by_task([1.0], [3.0])) == (2.0, None, None)


def test_only_common_tasks_and_seeds_are_paired() -> None:
    a = {"x": {0: 1.0, 1: 2.0}, "y": {0: 1.0}}
    b = {"x": {1: 5.0, 2: 6.0}, "z": {0: 1.0}}
    assert common(a, b) == [{"x": {1: 2.0}}, {"x": {1: 5.0}}]
    for other in ("x", "y"):
        with pytest.raises(ValueError, match="no common task, or a task without a common seed"):
            improvement({"x": {0: 1.0}}, {other: {1: 1.0}})


def test_the_rank_correlation_is_scipys_and_its_interval_is_of_our_seeds() -> None:
    ours = {"a": {0: 0.9, 1: 0.8}, "b": {0: 0.5, 1: 0.55}, "c": {0: 0.52, 1: 0.4}, "d": {0: 0.1}}
    ours["d"] = {0: 0.1, 1: 0.1}
    published = {"a": 0.7, "b": 0.6, "c": 0.65, "d": 0.2, "elsewhere": 0.0}
    found = rank_correlation(ours, published)
    means = [statistics.fmean(ours[name].values()) for name in "abcd"]
    expected = oracle.spearmanr(means, [published[name] for name in "abcd"]).statistic
    assert found.value == pytest.approx(expected) == 0.8
    assert (found.low, found.high) == (pytest.approx(0.8), 1.0)  # b and c may change places
    level = {name: {0: 1.0, 1: 1.0} for name in "abc"}
    assert rank_correlation(level, published).value == 0.0


def mean_of_tasks(tasks: list[np.ndarray]) -> np.ndarray:
    return np.stack([task.mean(-1) for task in tasks]).mean(0)


def covered(seeds: int, tasks: int, trials: int) -> float:
    """Share of simulated studies whose interval has the true mean, tasks of unlike difficulty."""
    generator = np.random.default_rng(seeds)
    centres = np.linspace(0.2, 0.9, tasks)
    inside = 0
    for _ in range(trials):
        drawn = generator.normal(centres[:, None], 0.1, (tasks, seeds))
        found = estimate([by_task(*drawn.tolist())], mean_of_tasks, draws=1000)
        inside += not excludes(found, float(centres.mean()))
    return inside / trials


@pytest.mark.slow
@pytest.mark.parametrize(("seeds", "tasks"), [(3, 8), (4, 8), (4, 3), (10, 4)])
def test_the_interval_covers_what_it_says(seeds: int, tasks: int) -> None:
    """1000 studies: the share has a standard error of 0.007; about 0.94 to 0.95 is found.

    Percentiles at 2.5 % cover 0.86, 0.89, 0.86 and 0.92 in these four cases.
    """
    assert 0.925 <= covered(seeds, tasks, 1000) <= 0.97


@pytest.mark.slow
def test_a_single_task_is_covered_by_students_interval_only() -> None:
    """The mean lies outside the extremes of four numbers in one case of eight."""
    assert covered(4, 1, 1000) < 0.92
    generator = np.random.default_rng(4)
    inside = 0
    for _ in range(2000):
        one = spread(generator.normal(0.5, 0.1, 4).tolist())
        assert one is not None
        assert one.interval is not None
        inside += one.interval[0] <= 0.5 <= one.interval[1]
    assert inside / 2000 == pytest.approx(0.95, abs=0.015)


@pytest.mark.slow
def test_a_part_that_is_no_better_is_seldom_called_better() -> None:
    generator = np.random.default_rng(5)
    called = 0
    for _ in range(1000):
        a, b = (by_task(*generator.normal(size=(8, 4)).tolist()) for _ in range(2))
        called += excludes(improvement(a, b, draws=1000), 0.5)
    assert 0.01 <= called / 1000 <= 0.08, called
