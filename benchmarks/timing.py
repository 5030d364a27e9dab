"""Time functions in turns, measure the peak memory of a function exactly, print a table.

In turns, because other work of a shared machine then affects all of them alike. Memory is that of
torch's allocator, from torch's profiler: the resident set of a process would also include memory
that the allocator keeps.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pandas as pd
import torch
from torch.profiler import ProfilerActivity, profile


def set_threads() -> int:
    """Let torch compute with OMP_NUM_THREADS threads, 2 if it is not set; return the number."""
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", 2)))
    return torch.get_num_threads()


def has(*features: str) -> bool:
    """Whether this CPU has one of these instruction sets."""
    return any(torch.cpu.get_capabilities().get(feature) for feature in features)


def multiplies_bf16() -> bool:
    """Whether this CPU has instructions for products in bf16."""
    return has("avx512_bf16", "amx_bf16")


def show(rows: Mapping[str, Any], title: str) -> None:
    """Print rows as a table: a line for each, a column for each key."""
    found = pd.DataFrame.from_dict(rows, orient="index")
    print(f"\n{title}\n{found.to_string(float_format='{:,.4g}'.format, na_rep='')}", flush=True)


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


def peak(work: Callable[[], object]) -> int:
    """Peak of the bytes allocated during `work()`, beyond those allocated before."""
    with _silent(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as trace:
        work()
    events = [e for e in trace.profiler.kineto_results.events() if e.name() == "[memory]"]
    allocated = highest = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        allocated += event.nbytes()
        highest = max(highest, allocated)
    return highest


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Redirect stderr to /dev/null: the profiler's C++ code writes lines there at start and end."""
    stderr = os.dup(2)
    with open(os.devnull, "w") as devnull:
        os.dup2(devnull.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
