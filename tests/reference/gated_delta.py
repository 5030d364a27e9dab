"""Gated delta rule as the paper writes it, token by token (arXiv 2412.06464, eq. 10)."""

from __future__ import annotations

import torch
from torch import Tensor


def gated_delta(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, alpha: Tensor, s: Tensor
) -> tuple[Tensor, Tensor]:
    """S_t = S_{t−1} (α_t (I − β_t k_t k_tᵀ)) + β_t v_t k_tᵀ, o_t = S_t q_t.

    q, k [b h t k], v [b h t v], beta and alpha [b h t], s [b h v k].
    """
    one = torch.eye(k.shape[-1], dtype=k.dtype)
    outputs = []
    for t in range(q.shape[2]):
        b, a = beta[:, :, t, None, None], alpha[:, :, t, None, None]
        key, value = k[:, :, t, :, None], v[:, :, t, :, None]
        s = s @ (a * (one - b * key @ key.mT)) + b * value @ key.mT
        outputs.append((s @ q[:, :, t, :, None])[..., 0])
    return torch.stack(outputs, 2), s
