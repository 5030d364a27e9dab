"""Threads that reduce as the processes of a distributed run do, within one process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar
from unittest import mock

import torch
from torch import Tensor

from chimera.ops import reduce

Found = TypeVar("Found")
PATIENCE = 20.0  # seconds until a thread that waits alone is an error


class Threads:
    """`reduce.Processes` of threads; each has its rank in `local`."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.local = threading.local()
        self.barrier = threading.Barrier(count, timeout=PATIENCE)
        self.parts: list[Tensor] = [torch.empty(0)] * count

    def sum(self, x: Tensor) -> Tensor:
        return self._all(x).sum(0)

    def max(self, x: Tensor) -> Tensor:
        return self._all(x).amax(0)

    def _all(self, x: Tensor) -> Tensor:
        self.parts[self.local.rank] = x.detach()
        self.barrier.wait()
        found = torch.stack(self.parts)
        self.barrier.wait()
        return found


def together(count: int, work: Callable[[int], Found]) -> list[Found]:
    """What `work(rank)` gives on each of `count` processes that run at the same time."""
    threads = Threads(count)

    def one(rank: int) -> Found:
        threads.local.rank = rank
        try:
            return work(rank)
        except BaseException:
            threads.barrier.abort()
            raise

    with mock.patch.object(reduce, "processes", threads), ThreadPoolExecutor(count) as pool:
        return list(pool.map(one, range(count)))
