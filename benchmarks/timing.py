"""Time functions in turns and take medians, so that noise of a shared machine matters little."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping


def turns(
    rivals: Mapping[str, Callable[[], object]], *, rounds: int = 9, warmup: int = 2
) -> dict[str, float]:
    """Median seconds of each rival.

    Args:
        rivals: functions to time, by name; every round runs each of them once, in order.
        rounds: number of timed rounds.
        warmup: number of rounds before them that are not timed.
    """
    seconds: dict[str, list[float]] = {name: [] for name in rivals}
    for number in range(warmup + rounds):
        for name, work in rivals.items():
            start = time.perf_counter()
            work()
            if number >= warmup:
                seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(times) for name, times in seconds.items()}
