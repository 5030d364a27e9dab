"""Timing that noise of a shared machine disturbs least: rivals take turns, medians are compared."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping


def turns(
    rivals: Mapping[str, Callable[[], object]], *, rounds: int = 9, warmup: int = 2
) -> dict[str, float]:
    """Median seconds of each rival; every round runs all of them, one after the other."""
    seconds: dict[str, list[float]] = {name: [] for name in rivals}
    for number in range(warmup + rounds):
        for name, work in rivals.items():
            start = time.perf_counter()
            work()
            if number >= warmup:
                seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(taken) for name, taken in seconds.items()}
