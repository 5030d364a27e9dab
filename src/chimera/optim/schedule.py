"""Learning-rate schedules (SPEC T2): a factor of each group's rate, per optimiser step.

A schedule is a function `(total, …) -> (step -> factor)`. `total` is the number of optimiser steps
of the whole run. It comes from the configuration, because the length of a resumed loader is not the
number of remaining steps. Arguments `warmup` and `min_ratio` get `optim.warmup` and
`optim.min_ratio`:

    warmup      share of all steps with a linear rise of the factor, from 1/n to 1 in n steps
    min_ratio   factor at the end
"""

from __future__ import annotations

import math
from collections.abc import Callable

from chimera.types import Fraction, ProperFraction

Factor = Callable[[int], float]


def warmup_cosine(total: int, warmup: ProperFraction, min_ratio: Fraction = 0.0) -> Factor:
    """Linear warm-up, then a half cosine to `min_ratio`."""
    rise = round(warmup * total)

    def factor(step: int) -> float:
        if step < rise:
            return (step + 1) / rise
        progress = min(1.0, (step - rise) / max(1, total - rise))
        return min_ratio + (1 - min_ratio) * 0.5 * (1 + math.cos(math.pi * progress))

    return factor


def warmup_linear(total: int, warmup: ProperFraction, min_ratio: Fraction = 0.0) -> Factor:
    """Linear warm-up, then linear decay to `min_ratio` (as BERT, arXiv 1810.04805)."""
    return wsd(total, warmup, min_ratio, decay=1.0)


def warmup_constant(total: int, warmup: ProperFraction) -> Factor:
    """Linear warm-up, then constant 1."""
    return wsd(total, warmup, decay=0.0)


def wsd(
    total: int, warmup: ProperFraction, min_ratio: Fraction = 0.0, *, decay: Fraction = 0.1
) -> Factor:
    """Warm-up, stable phase with factor 1, linear decay in the last steps (arXiv 2404.06395).

    Args:
        total, warmup, min_ratio: see above.
        decay: share of all steps with a linear decay to `min_ratio`; at most 1 − warmup.
    """
    rise = round(warmup * total)
    fall = min(round(decay * total), total - rise)

    def factor(step: int) -> float:
        if step < rise:
            return (step + 1) / rise
        remaining = max(0, total - step)
        return 1.0 if remaining >= fall else min_ratio + (1 - min_ratio) * remaining / fall

    return factor
