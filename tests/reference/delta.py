"""Delta rule by its definition, token by token (TPTT eq. 10, 16; SPEC M11)."""

from __future__ import annotations

import torch
from torch import Tensor


def delta(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, decay: Tensor | None, h: Tensor
) -> tuple[Tensor, Tensor]:
    """q [b h t k], k [b h t n k], v [b h t n v], beta [b h t n 1|k], decay [b h t], h [b h k v]."""
    reads = []
    for t in range(q.shape[2]):
        if decay is not None:
            h = h * decay[:, :, t, None, None].exp()
        for j in range(k.shape[3]):
            key, gate = k[:, :, t, j], beta[:, :, t, j]
            error = gate * v[:, :, t, j] - torch.einsum("bhkv,bhk->bhv", h, gate * key)
            h = h + torch.einsum("bhk,bhv->bhkv", key, error)
        reads.append(torch.einsum("bhkv,bhk->bhv", h, q[:, :, t]))
    return torch.stack(reads, 2), h
