"""The straight-through estimator, and how to tell a recomputation from a forward pass.

    forward: y = q(x)      backward: ∂L/∂x = ∂L/∂y                  (arXiv 1308.3432, TITAN eq. 37)

One autograd function hands back q itself. The usual x + (q − x).detach() rounds twice, so that its
values lie beside the grid, and reads and writes everything twice more.
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
    """q in the forward pass, the identity from x in the backward pass.

    Args:
        x: what is quantised and gets the gradient.
        q: its quantised value, of the same shape and dtype; made without autograd.
        divisor: if given, the gradient is divided by it on the way back (SPEC E7).
    """
    return _StraightThrough.apply(x, q, divisor)


def recomputing() -> bool:
    """True inside a backward pass: gradient checkpointing runs a forward a second time there.

    Running statistics look at this, or they would count the same batch twice. There is no public
    question of this kind; torch.utils.checkpoint itself asks the engine the same way.
    """
    return torch._C._current_graph_task_id() != -1
