"""The few statistics of a table: spread over seeds, and a paired t-test of two rows.

Rows share seeds, hence data order and initial weights where their shapes agree: differences are
taken seed by seed, t = d̄ / (s_d/√n) with n − 1 degrees of freedom, two-sided.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

#: Below this p a difference counts as beyond the spread of the seeds.
LEVEL = 0.05


@dataclass(frozen=True)
class Spread:
    """Mean and sample standard deviation (None for a single value) of n values."""

    mean: float
    std: float | None
    n: int


@dataclass(frozen=True)
class Difference(Spread):
    """Of two rows over the seeds that both have; `p` of the paired test, None for one seed."""

    p: float | None

    @property
    def beyond(self) -> bool:
        """Whether it is beyond what seeds alone do."""
        return self.p is not None and self.p < LEVEL


def spread(values: Sequence[float]) -> Spread | None:
    """None of no values."""
    if not values:
        return None
    mean = math.fsum(values) / len(values)
    if len(values) == 1:
        return Spread(mean, None, 1)
    squares = math.fsum((v - mean) ** 2 for v in values)
    return Spread(mean, math.sqrt(squares / (len(values) - 1)), len(values))


def paired(a: Mapping[int, float], b: Mapping[int, float]) -> Difference | None:
    """a − b over the seeds of both; None if they share none."""
    found = spread([a[seed] - b[seed] for seed in sorted(a.keys() & b.keys())])
    return Difference(found.mean, found.std, found.n, _p(found)) if found else None


def _p(of: Spread) -> float | None:
    from scipy.special import stdtr

    if of.std is None:
        return None
    if of.std == 0.0:
        return 1.0 if of.mean == 0.0 else 0.0
    t = of.mean / (of.std / math.sqrt(of.n))
    return float(2 * stdtr(of.n - 1, -abs(t)))
