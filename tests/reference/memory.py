"""TITAN eq. 31-32 token by token, one head: slow, simple, differentiable."""

from __future__ import annotations

import torch
from torch import Tensor


def fast_weights(
    q: Tensor, k: Tensor, v: Tensor, alpha: Tensor, M: Tensor
) -> tuple[Tensor, Tensor]:
    """M_t = α M_{t−1} + (1 − α) k_t v_tᵀ, r_t = M_tᵀ q_t; q, k [t k], v [t v], M [k v]."""
    reads = []
    for i in range(len(q)):
        M = alpha * M + (1 - alpha) * torch.outer(k[i], v[i])
        reads.append(M.T @ q[i])
    return torch.stack(reads), M
