"""Statistics of a table: mean and spread over seeds, and a paired t-test of two rows.

Rows share seeds, hence data order and, where shapes agree, initial weights: differences are taken
seed by seed and tested two-sided (`scipy.stats.ttest_rel`).
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

#: Below this p a difference counts as beyond the spread of the seeds.
LEVEL = 0.05
#: A spread smaller than this part of the mean is the rounding of equal numbers.
EQUAL = 1e-12


@dataclass(frozen=True)
class Spread:
    """Mean and sample standard deviation (None for a single value) of n values."""

    mean: float
    std: float | None
    n: int

    @property
    def equal(self) -> bool:
        """Whether all values are the same but for rounding."""
        return not self.std or self.std < EQUAL * abs(self.mean)


@dataclass(frozen=True)
class Difference(Spread):
    """Of two rows over the seeds that both have; `p` of the paired test, None for one seed."""

    p: float | None

    @property
    def beyond(self) -> bool:
        """Whether the test rejects equal means at LEVEL."""
        return self.p is not None and self.p < LEVEL


def spread(values: Sequence[float]) -> Spread | None:
    """Mean and spread of `values`; None of no values."""
    if not values:
        return None
    std = statistics.stdev(values) if len(values) > 1 else None
    return Spread(statistics.fmean(values), std, len(values))


def paired(a: Mapping[int, float], b: Mapping[int, float]) -> Difference | None:
    """a − b over the seeds of both; None if they share none."""
    seeds = sorted(a.keys() & b.keys())
    of = spread([a[seed] - b[seed] for seed in seeds])
    if of is None:
        return None
    p = _p([a[seed] for seed in seeds], [b[seed] for seed in seeds], of)
    return Difference(of.mean, of.std, of.n, p)


def _p(a: list[float], b: list[float], difference: Spread) -> float | None:
    if difference.std is None:
        return None
    if difference.equal:  # scipy would warn, and divide by zero
        return 1.0 if difference.mean == 0.0 else 0.0
    from scipy.stats import ttest_rel  # takes half a second to import

    return float(ttest_rel(a, b).pvalue)
