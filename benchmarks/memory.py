"""Peak memory of a piece of work, exactly: torch's profiler reports each allocation and release.

The resident set of a process would count the allocator's habits too, and needs a process for each
number. This counts all that torch's own allocator hands out, in both passes, whoever asks for it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator

from torch.profiler import ProfilerActivity, profile


def peak(work: Callable[[], object]) -> int:
    """Most bytes held at one time beyond those held before."""
    with _silent(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        work()
    events = [e for e in seen.profiler.kineto_results.events() if e.name() == "[memory]"]
    held = most = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        held += event.nbytes()
        most = max(most, held)
    return most


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """The profiler's C++ side writes a line to stderr whenever it starts and stops."""
    kept = os.dup(2)
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
