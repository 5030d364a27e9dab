"""Compute the statistics of a table: mean and spread over seeds, paired t-tests of its rows.

Runs of one seed share the data order and, where shapes agree, the initial weights. So differences
of rows are taken seed by seed and tested two-sided, as `scipy.stats.ttest_rel` does. A table has
several tests: their p-values are corrected by Holm's method (S. Holm, 1979, Scandinavian Journal
of Statistics 6, 65-70), so that the chance of any false «significant» in it stays below LEVEL.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

#: Significance level of the paired t-test.
LEVEL = 0.05
#: Values whose spread is below this share of their mean differ by rounding only.
EQUAL = 1e-12


@dataclass(frozen=True)
class Spread:
    """Mean and sample standard deviation of n values; `std` is None for a single value."""

    mean: float
    std: float | None
    n: int

    @property
    def equal(self) -> bool:
        """Whether the values differ by rounding only."""
        return not self.std or self.std < EQUAL * abs(self.mean)

    @property
    def interval(self) -> tuple[float, float] | None:
        """Student's interval of the mean at 1 − LEVEL, uncorrected; None for a single value."""
        if self.std is None:
            return None
        half = _quantile(LEVEL, self.n) * self.std / math.sqrt(self.n)
        return self.mean - half, self.mean + half


@dataclass(frozen=True)
class Difference(Spread):
    """Difference of two rows over their common seeds.

    Args:
        p: of the paired test alone; None for one seed.
        corrected: p after the correction for all tests of a table; None before it.
    """

    p: float | None
    corrected: float | None = None

    @property
    def significant(self) -> bool:
        """Whether the paired test rejects equal means at LEVEL, corrected if it was."""
        p = self.p if self.corrected is None else self.corrected
        return p is not None and p < LEVEL


def finite(value: object) -> float | None:
    """A finite number of a file, or None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:  # an integer of hundreds of digits
        return None


def spread(values: Sequence[float]) -> Spread | None:
    """Mean and spread of `values`; None if `values` is empty."""
    if not values:
        return None
    std = statistics.stdev(values) if len(values) > 1 else None
    return Spread(statistics.fmean(values), std, len(values))


def paired(a: Mapping[int, float], b: Mapping[int, float]) -> Difference | None:
    """Mean and spread of a − b over the common seeds, with p; None without common seeds.

    Args:
        a, b: values by seed.
    """
    seeds = sorted(a.keys() & b.keys())
    difference = spread([a[seed] - b[seed] for seed in seeds])
    if difference is None:
        return None
    return Difference(difference.mean, difference.std, difference.n, _p(difference))


def corrected(
    differences: Sequence[Difference | None], *, test: bool = True
) -> list[Difference | None]:
    """The same differences with p corrected by Holm's method for the number that have one.

    Args:
        differences: of a table.
        test: without it they lose their p: those of counts are no draws from a normal distribution.
    """
    if not test:
        return [None if one is None else replace(one, p=None) for one in differences]
    tested = sorted((d.p, i) for i, d in enumerate(differences) if d and d.p is not None)
    scaled = (min(1.0, (len(tested) - rank) * p) for rank, (p, _) in enumerate(tested))
    holm = {i: p for (_, i), p in zip(tested, accumulate(scaled, max), strict=True)}
    return [d and replace(d, corrected=holm.get(i)) for i, d in enumerate(differences)]


def resolvable(differences: Sequence[Difference | None]) -> float | None:
    """Mean that a difference of the pooled spread needs to be significant in the table.

    It is the one that Holm's first and strictest step asks for, with the pooled standard deviation
    of the differences and the smallest number of common seeds. None if no difference has a spread.
    """
    found = [(d.n, d.std) for d in differences if d is not None and d.std is not None]
    if not found:
        return None
    freedom = sum(n - 1 for n, _ in found)
    pooled = math.sqrt(sum((n - 1) * std**2 for n, std in found) / freedom)
    return smallest_significant(Spread(0.0, pooled, min(n for n, _ in found)), len(found))


def smallest_significant(difference: Spread, tests: int) -> float | None:
    """Mean that a difference of this spread needs to be significant; None without a spread.

    It is the standard error times the quantile of Student's distribution at LEVEL / tests.

    Args:
        difference: of two rows, seed by seed.
        tests: of the table, which share LEVEL.
    """
    if not difference.std:
        return None
    return _quantile(LEVEL / tests, difference.n) * difference.std / math.sqrt(difference.n)


def _quantile(level: float, n: int) -> float:
    """Two-sided quantile of Student's distribution with n − 1 degrees of freedom."""
    from scipy.special import stdtrit  # not scipy.stats, which takes a second to import

    return float(stdtrit(n - 1, 1 - level / 2))


def _p(difference: Spread) -> float | None:
    """p of t = mean / (std / √n) by Student's distribution with n − 1 degrees of freedom."""
    if difference.std is None:
        return None
    if difference.equal:  # no spread to divide by
        return 1.0 if difference.mean == 0.0 else 0.0
    from scipy.special import stdtr  # not scipy.stats, which takes a second to import

    t = abs(difference.mean) / difference.std * math.sqrt(difference.n)
    return 2 * float(stdtr(difference.n - 1, -t))
