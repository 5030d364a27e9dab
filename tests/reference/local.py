"""Softmax attention over a neighbourhood, one query at a time."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    near: Callable[[int, int], bool],
    bias: Callable[[int, int], Tensor] | None = None,
) -> Tensor:
    """Output [h t k]: query i attends to keys j with near(i, j); bias(i, j) is [h]."""
    rows = []
    for i in range(q.shape[1]):
        seen = [j for j in range(k.shape[1]) if near(i, j)]
        scores = torch.einsum("hk,hjk->hj", q[:, i], k[:, seen]) / q.shape[-1] ** 0.5
        if bias is not None:
            scores = scores + torch.stack([bias(i, j) for j in seen], 1)
        rows.append(torch.einsum("hj,hjv->hv", scores.softmax(-1), v[:, seen]))
    return torch.stack(rows, 1)
