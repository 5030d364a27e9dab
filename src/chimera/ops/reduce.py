"""Sums and maxima over all processes that train together; with one process they change nothing.

Statistics of a batch, such as the balance of experts, maxima of a grid and running means, are of
the whole batch, of which each process has a share. All processes have to reach a reduction, in the
same order: none may stand in a branch that depends on a process's own samples.

The gradient of a sum is the sum of the processes' gradients, as of one process whose loss is the
sum of theirs: a task's loss on a process is its share of the whole batch's (`task.base`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, distributed


class Processes(Protocol):
    """The processes that a reduction is over."""

    @property
    def count(self) -> int:
        """Number of processes."""

    def sum(self, x: Tensor) -> Tensor:
        """New tensor with the sum over the processes, without a gradient."""

    def max(self, x: Tensor) -> Tensor:
        """New tensor with the maximum over the processes, without a gradient."""


class _Group:
    """The default process group of torch.distributed; one process where there is none."""

    @property
    def count(self) -> int:
        ready = distributed.is_available() and distributed.is_initialized()
        return distributed.get_world_size() if ready else 1

    def sum(self, x: Tensor) -> Tensor:
        return self._reduced(x, distributed.ReduceOp.SUM)

    def max(self, x: Tensor) -> Tensor:
        return self._reduced(x, distributed.ReduceOp.MAX)

    def _reduced(self, x: Tensor, operation: Any) -> Tensor:
        x = x.detach().clone(memory_format=torch.contiguous_format)
        distributed.all_reduce(x, operation)
        return x


processes: Processes = _Group()


def participants() -> int:
    """Number of processes that train together."""
    return processes.count


def total(x: Tensor) -> Tensor:
    """Sum of x over the processes, differentiable."""
    return x if processes.count == 1 else _Total.apply(x)


def largest(x: Tensor) -> Tensor:
    """Maximum of x over the processes, without a gradient."""
    return x if processes.count == 1 else processes.max(x)


class _Total(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return processes.sum(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return processes.sum(grads[0])


def any_of(flag: bool) -> bool:
    """Whether the flag is set on any process."""
    return flag if processes.count == 1 else bool(processes.max(torch.tensor(float(flag))) > 0)


def totals(numbers: Sequence[float]) -> list[float]:
    """Sums over the processes, in float64."""
    if processes.count == 1:
        return list(numbers)
    return processes.sum(torch.tensor(numbers, dtype=torch.float64)).tolist()
