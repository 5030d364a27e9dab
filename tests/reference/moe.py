"""Mixture of experts, one token and one choice at a time (TITAN eq. 38-45)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def moe(
    x: Tensor,
    router: Tensor,
    experts: Sequence[Callable[[Tensor], Tensor]],
    k: int,
    factor: float | None,
    *,
    in_order: bool,
) -> tuple[Tensor, list[int]]:
    """Rows [n d] to rows [n d], and the number of rows of each expert."""
    probs = torch.softmax(x @ router.T, -1)
    turns = [(t, c) for t in range(len(x)) for c in range(k)]
    if not in_order:
        turns.sort(key=lambda turn: turn[1])
    room = math.inf if factor is None else math.ceil(factor * len(x) / len(experts))
    served, y = [0] * len(experts), torch.zeros_like(x)
    for t, c in turns:
        values, order = probs[t].sort(descending=True)
        expert = int(order[c])
        if served[expert] < room:
            served[expert] += 1
            y[t] = y[t] + values[c] / values[:k].sum() * experts[expert](x[t])
    return y, served
