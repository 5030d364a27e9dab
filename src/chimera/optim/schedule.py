"""Learning-rate schedules (SPEC T2): a factor on every group's rate, by optimiser step.

A schedule is a function `(total, …) -> (step -> factor)`. `total` is the number of optimiser steps
of the whole run and comes from the configuration, never from the loader: the length of a resumed
loader is not what is left of the run. Arguments called `warmup` and `min_ratio` are given
`optim.warmup` and `optim.min_ratio`:

    warmup      share of all steps over which the factor rises linearly, from 1/n to 1 in n steps
    min_ratio   factor at the end
"""

from __future__ import annotations

import math
from collections.abc import Callable

from chimera.types import Fraction, ProperFraction

Factor = Callable[[int], float]


def warmup_cosine(total: int, warmup: ProperFraction, min_ratio: Fraction = 0.0) -> Factor:
    """Warm-up, then half a cosine down to `min_ratio`."""
    rise = round(warmup * total)

    def factor(step: int) -> float:
        if step < rise:
            return (step + 1) / rise
        done = min(1.0, (step - rise) / max(1, total - rise))
        return min_ratio + (1 - min_ratio) * 0.5 * (1 + math.cos(math.pi * done))

    return factor


def warmup_linear(total: int, warmup: ProperFraction, min_ratio: Fraction = 0.0) -> Factor:
    """Warm-up, then a straight line down to `min_ratio` (as BERT, arXiv 1810.04805)."""
    return wsd(total, warmup, min_ratio, decay=1.0)


def warmup_constant(total: int, warmup: ProperFraction) -> Factor:
    """Warm-up, then 1."""
    return wsd(total, warmup, decay=0.0)


def wsd(
    total: int, warmup: ProperFraction, min_ratio: Fraction = 0.0, *, decay: Fraction = 0.1
) -> Factor:
    """Warm-up, stable, decay: 1 until the last steps, then a straight line (arXiv 2404.06395).

    Args:
        total, warmup, min_ratio: see above.
        decay: share of all steps over which the factor falls to `min_ratio`; at most what the
            warm-up leaves.
    """
    rise = round(warmup * total)
    fall = min(round(decay * total), total - rise)

    def factor(step: int) -> float:
        if step < rise:
            return (step + 1) / rise
        left = max(0, total - step)
        return 1.0 if left >= fall else min_ratio + (1 - min_ratio) * left / fall

    return factor
