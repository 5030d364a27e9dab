"""Apply a function in worker processes, in order, with a bounded number of results in memory."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from typing import Any, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

#: Bytes of text that one process handles faster than several that have to be started.
FOR_ONE_PROCESS = 1 << 25
#: Items per process that are under way or wait for the ones before them.
_AHEAD = 3
_work: Callable[[Any], Any]  # of this worker process


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def in_order(
    work: Callable[[Item], Result], items: Iterable[Item], processes: int
) -> Iterator[Result]:
    """Results of `work` for each item, in the order of the items.

    Args:
        work: sent to each process once.
        items: read as results are taken.
        processes: 1 works in this process.
    """
    if processes == 1:
        yield from map(work, items)
        return
    pool = ProcessPoolExecutor(processes, initializer=_start, initargs=(work, os.getpid()))
    pending: deque[Future[Result]] = deque()
    try:
        for item in items:
            pending.append(pool.submit(_do, item))
            if len(pending) >= _AHEAD * processes:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def _start(work: Callable[[Any], Any], parent: int) -> None:
    global _work
    _work = work
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the processes are the parallelism
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _do(item: Any) -> Any:
    return _work(item)


def _end_with(parent: int) -> None:
    """End this process when its parent is gone: a killed parent cannot tell its workers."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)
