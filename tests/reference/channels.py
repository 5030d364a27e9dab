"""Recurrences with a decay per channel, token by token.

GLA (arXiv 2312.06635, eq. 3), and with a rank-one term read from the state (RWKV-7, arXiv
2503.14456, section 4; Kimi Delta Attention, arXiv 2510.26692, eq. 1).
"""

from __future__ import annotations

import torch
from torch import Tensor


def decayed(q: Tensor, k: Tensor, v: Tensor, g: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
    """S_t = diag(exp g_t) S_{t−1} + k_t v_tᵀ, o_t = S_tᵀ q_t; s [b h k v]."""
    outputs = []
    for t in range(q.shape[2]):
        s = g[:, :, t, :, None].exp() * s + k[:, :, t, :, None] * v[:, :, t, None]
        outputs.append(torch.einsum("bhkv,bhk->bhv", s, q[:, :, t]))
    return torch.stack(outputs, 2), s


def low_rank(
    q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, g: Tensor, s: Tensor
) -> tuple[Tensor, Tensor]:
    """S_t = (diag(exp g_t) + b_t a_tᵀ) S_{t−1} + k_t v_tᵀ, o_t = S_tᵀ q_t."""
    outputs = []
    for t in range(q.shape[2]):
        move = torch.diag_embed(g[:, :, t].exp()) + b[:, :, t, :, None] * a[:, :, t, None]
        s = move @ s + k[:, :, t, :, None] * v[:, :, t, None]
        outputs.append(torch.einsum("bhkv,bhk->bhv", s, q[:, :, t]))
    return torch.stack(outputs, 2), s
