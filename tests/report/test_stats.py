"""The paired test against scipy's, its cases without a result, and the format of numbers."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats as oracle

from chimera.report import formatting
from chimera.report.stats import (
    LEVEL,
    Difference,
    Spread,
    corrected,
    paired,
    resolvable,
    smallest_significant,
    spread,
)


@pytest.mark.parametrize("n", [2, 3, 5, 12])
def test_paired_t_test_is_scipys(n: int) -> None:
    draw = np.random.default_rng(n)
    a, b = draw.normal(1.0, 2.0, n), draw.normal(0.0, 2.0, n)
    difference = paired(dict(enumerate(a)), dict(enumerate(b)))
    assert difference is not None
    expected = oracle.ttest_rel(a, b)
    assert difference.p == pytest.approx(expected.pvalue, rel=1e-12)
    assert difference.mean == pytest.approx(np.mean(a - b), rel=1e-12)
    assert difference.std == pytest.approx(np.std(a - b, ddof=1), rel=1e-12)


def test_only_shared_seeds_are_paired() -> None:
    difference = paired({0: 5.0, 1: 7.0, 9: 100.0}, {0: 4.0, 1: 5.0, 8: -100.0})
    assert difference is not None
    assert (difference.mean, difference.n) == (1.5, 2)
    assert paired({0: 1.0}, {1: 1.0}) is None


def test_one_seed_has_no_spread_and_no_test() -> None:
    assert spread([]) is None
    assert spread([3.0]) == Spread(3.0, None, 1)
    assert paired({0: 3.0}, {0: 1.0}) == Difference(2.0, None, 1, None)


def test_equal_numbers_have_p_1() -> None:
    same = paired({0: 3.0, 1: 4.0}, {0: 3.0, 1: 4.0})
    assert same is not None
    assert same.p == 1.0
    assert not same.significant


@given(st.lists(st.floats(0, 1), min_size=1, max_size=6))
def test_the_correction_is_the_closed_test_of_bonferronis(ps: list[float]) -> None:
    """A hypothesis falls if each set of hypotheses with it does, p·size at the smallest of p."""
    found = corrected([None, *(Difference(1.0, 1.0, 3, p) for p in ps)])
    assert found.pop(0) is None
    for i, one in enumerate(found):
        sets = [
            [ps[j] for j in chosen]
            for size in range(1, len(ps) + 1)
            for chosen in combinations(range(len(ps)), size)
            if i in chosen
        ]
        assert one is not None
        expected = max(min(1.0, len(chosen) * min(chosen)) for chosen in sets)
        assert one.corrected == pytest.approx(expected, rel=1e-12)
        assert one.significant == (one.corrected < LEVEL)


@pytest.mark.parametrize("n", [2, 3, 7])
def test_the_interval_is_scipys(n: int) -> None:
    a, b = np.random.default_rng(n).normal(size=(2, n))
    difference = paired(dict(enumerate(a)), dict(enumerate(b)))
    assert difference is not None
    expected = oracle.ttest_rel(a, b).confidence_interval(1 - LEVEL)
    assert difference.interval == pytest.approx((expected.low, expected.high), rel=1e-9)


@pytest.mark.parametrize("n", [2, 3, 5])
@pytest.mark.parametrize("rows", [1, 4])
def test_the_smallest_resolved_difference_is_at_the_level(n: int, rows: int) -> None:
    noise = oracle.zscore(np.random.default_rng(n).normal(size=n), ddof=1)
    still = [paired(dict(enumerate(noise)), dict.fromkeys(range(n), 0.0))] * (rows - 1)
    smallest = resolvable([*still, paired(dict(enumerate(noise)), dict.fromkeys(range(n), 0.0))])
    assert smallest is not None
    for share, significant in ((0.999, False), (1.001, True)):
        one = paired(dict(enumerate(noise + share * smallest)), dict.fromkeys(range(n), 0.0))
        assert one is not None
        last = corrected([*still, one])[-1]
        assert last is not None
        assert last.significant is significant


@pytest.mark.parametrize("tests", [1, 3])
def test_a_row_that_scatters_less_resolves_less(tests: int) -> None:
    noise = oracle.zscore(np.random.default_rng(tests).normal(size=4), ddof=1)
    for size in (0.01, 5.0):
        row = paired(dict(enumerate(size * noise)), dict.fromkeys(range(4), 0.0))
        assert row is not None
        limit = smallest_significant(row, tests)
        assert limit is not None
        one = paired(dict(enumerate(size * noise + 1.001 * limit)), dict.fromkeys(range(4), 0.0))
        assert one is not None
        assert one.p == pytest.approx(LEVEL / tests, rel=0.02)
    assert smallest_significant(Spread(1.0, None, 1), tests) is None


def test_without_a_spread_nothing_is_said_of_what_is_resolved() -> None:
    assert resolvable([]) is None
    assert resolvable([None, paired({0: 1.0}, {0: 2.0})]) is None
    assert resolvable([paired({0: 1.0, 1: 2.0}, {0: 1.0, 1: 2.0})]) is None


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Spread(189.7342, 2.345, 3), "189.7 ± 2.3"),
        (Spread(189.7342, 0.0342, 3), "189.734 ± 0.034"),
        (Spread(1897.342, 123.4, 3), "1,897 ± 123"),
        (Spread(189.7342, None, 1), "189.7"),
        (Spread(0.51234567, 0.0123, 3), "0.512 ± 0.012"),
        (Spread(0.691275, 1e-17, 3), "0.6913 ± 0"),  # equal but for rounding
    ],
)
def test_the_mean_has_the_decimals_of_the_spread(value: Spread, text: str) -> None:
    assert formatting.spread(value) == text


def test_sizes_and_times() -> None:
    assert [formatting.count(n) for n in (999, 12_800_000, 303e6)] == ["999", "12.8 M", "303 M"]
    assert [formatting.clock(s) for s in (9.6, 194, 7325)] == ["0:10", "3:14", "2:02:05"]
    assert [formatting.number(x) for x in (0, 18.9, 12345.6)] == ["0", "18.90", "12,346"]


def test_a_difference_without_spread_has_p_0() -> None:
    for shift in (1.0, 0.1):  # 3.1 − 3.0 and 4.1 − 4.0 differ by rounding
        difference = paired({0: 3.0 + shift, 1: 4.0 + shift}, {0: 3.0, 1: 4.0})
        assert difference is not None
        assert difference.p == 0.0
