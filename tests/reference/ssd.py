"""State-space model with a decay per head, token by token (arXiv 2405.21060, eq. 1 and 2)."""

from __future__ import annotations

import torch
from torch import Tensor


def ssd(
    x: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, h: Tensor
) -> tuple[Tensor, Tensor]:
    """h_t = exp(Δ_t A) h_{t−1} + Δ_t B_t x_tᵀ, y_t = C_tᵀ h_t, for each head.

    x [b t h p], delta [b t h], A [h], B and C [b t g n] with h a multiple of g, h [b h n p].
    """
    B, C = (y.repeat_interleave(x.shape[2] // y.shape[2], 2) for y in (B, C))
    ys = []
    for t in range(x.shape[1]):
        keep = (delta[:, t] * A).exp()[..., None, None]
        h = keep * h + torch.einsum("bh,bhn,bhp->bhnp", delta[:, t], B[:, t], x[:, t])
        ys.append(torch.einsum("bhn,bhnp->bhp", C[:, t], h))
    return torch.stack(ys, 1), h
