"""Straight-through estimator, and a test for recomputation by gradient checkpointing.

    forward: y = q(x)      backward: ∂L/∂x = ∂L/∂y                  (arXiv 1308.3432, TITAN eq. 37)

One autograd function returns q exactly. The usual x + (q − x).detach() rounds twice, so that its
values are not on the grid, and reads and writes every tensor twice more.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function


class _StraightThrough(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, q: Tensor, divisor: Tensor | None) -> Tensor:
        ctx.divisor = divisor
        return q.view_as(q)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        g = grads[0]
        return g if ctx.divisor is None else (g / ctx.divisor).to(g.dtype), None, None


def straight(x: Tensor, q: Tensor, divisor: Tensor | None = None) -> Tensor:
    """Return q; the backward pass gives x the gradient of the output.

    Args:
        x: tensor before quantisation.
        q: quantised x, of the same shape and dtype, computed without autograd.
        divisor: if given, the gradient is divided by `divisor` (SPEC E7).
    """
    return _StraightThrough.apply(x, q, divisor)


def recomputing() -> bool:
    """True in a backward pass, where gradient checkpointing runs the forward pass a second time.

    Running statistics skip recomputation, in order to count each batch once. torch has no public
    function for this test; torch.utils.checkpoint uses the same private call. False inside a graph
    of torch.compile, which cannot ask and recomputes without Python.
    """
    return not torch.compiler.is_compiling() and torch._C._current_graph_task_id() != -1
