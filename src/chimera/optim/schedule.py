"""Linear warm-up, then half a cosine (SPEC T2), as a factor on every group's rate."""

from __future__ import annotations

import math
from collections.abc import Callable


def warmup_cosine(total: int, warmup: float, min_ratio: float = 0.0) -> Callable[[int], float]:
    """The factor at optimiser step 0 … total−1.

    `total` comes from the configuration, never from the loader: a resumed loader's length is not
    what is left of the run.

    Args:
        total: optimiser steps of the whole run.
        warmup: share of them over which the factor rises, from 1/n to 1 in n steps.
        min_ratio: factor at the end.
    """
    rise = round(warmup * total)

    def factor(step: int) -> float:
        if step < rise:
            return (step + 1) / rise
        done = min(1.0, (step - rise) / max(1, total - rise))
        return min_ratio + (1 - min_ratio) * 0.5 * (1 + math.cos(math.pi * done))

    return factor
