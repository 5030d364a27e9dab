"""Attention-free transformer, one query at a time (arXiv 2105.14103, eq. 2)."""

from __future__ import annotations

import torch
from torch import Tensor


def aft(k: Tensor, v: Tensor, w: Tensor, *, causal: bool) -> Tensor:
    """Output [t d] from keys and values [t d] and pairwise biases [t t], without the gate σ(q)."""
    rows = []
    for t in range(len(k)):
        seen = slice(0, t + 1) if causal else slice(None)
        weights = (k[seen] + w[t, seen, None]).softmax(0)
        rows.append((weights * v[seen]).sum(0))
    return torch.stack(rows)
