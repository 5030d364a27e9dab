"""Measure the peak memory of a function exactly, from the allocations in torch's profiler.

All allocations by torch's allocator count, in the forward and the backward pass. The resident set
of a process would also include memory that the allocator keeps, and needs a process per number.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator

from torch.profiler import ProfilerActivity, profile


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
