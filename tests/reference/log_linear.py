"""Log-linear attention by its definition: the buckets of a Fenwick tree (arXiv 2506.04761)."""

from __future__ import annotations

import torch
from torch import Tensor


def buckets(t: int, levels: int) -> list[tuple[int, range]]:
    """(level, tokens) of the buckets of token t, counted from 0: the largest power first."""
    found, start = [], 0
    for bit in range(t.bit_length() - 1, -1, -1):
        if t >> bit & 1:
            found.append((min(bit + 1, levels - 1), range(start, start + 2**bit)))
            start += 2**bit
    return [*found, (0, range(t, t + 1))]


def log_linear(q: Tensor, k: Tensor, v: Tensor, g: Tensor, scale: Tensor) -> Tensor:
    """q, k [b h t k], v [b h t v], g [b h t], scale [b h t l]; a sum over buckets and tokens."""
    outputs = []
    for t in range(q.shape[2]):
        o = torch.zeros_like(v[:, :, 0])
        for level, tokens in buckets(t, scale.shape[-1]):
            for s in tokens:
                decay = g[:, :, s + 1 : t + 1].sum(-1).exp()
                score = (q[:, :, t] * k[:, :, s]).sum(-1) * decay * scale[:, :, t, level]
                o = o + score[..., None] * v[:, :, s]
        outputs.append(o)
    return torch.stack(outputs, 2)
