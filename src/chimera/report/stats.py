"""Compute the statistics of a table: mean and spread over seeds, paired t-test of two rows.

Runs of one seed share the data order and, where shapes agree, the initial weights. So differences
of rows are taken seed by seed and tested two-sided, as `scipy.stats.ttest_rel` does.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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


@dataclass(frozen=True)
class Difference(Spread):
    """Difference of two rows over their common seeds; `p` of the paired test, None for one seed."""

    p: float | None

    @property
    def significant(self) -> bool:
        """Whether the paired test rejects equal means at LEVEL."""
        return self.p is not None and self.p < LEVEL


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


def _p(difference: Spread) -> float | None:
    """p of t = mean / (std / √n) by Student's distribution with n − 1 degrees of freedom."""
    if difference.std is None:
        return None
    if difference.equal:  # no spread to divide by
        return 1.0 if difference.mean == 0.0 else 0.0
    from scipy.special import stdtr  # not scipy.stats, which takes a second to import

    t = abs(difference.mean) / difference.std * math.sqrt(difference.n)
    return 2 * float(stdtr(difference.n - 1, -t))
