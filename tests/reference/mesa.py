"""Mesa layer by its definition: a system solved for each token (arXiv 2506.05233, section 3)."""

from __future__ import annotations

import torch
from torch import Tensor


def mesa(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, g: Tensor, ridge: Tensor, s: Tensor
) -> tuple[Tensor, Tensor]:
    """o_t = G_tᵀ (H_t + Λ)⁻¹ q_t; q, k [b h t k], v [b h t v], β, g [b h t], Λ [h k], s [H, G]."""
    width, outputs = q.shape[-1], []
    for t in range(q.shape[2]):
        key, value = k[:, :, t, :, None], torch.cat([k[:, :, t], v[:, :, t]], -1)[:, :, None]
        s = g[:, :, t, None, None].exp() * s + beta[:, :, t, None, None] * key * value
        x = torch.linalg.solve(s[..., :width] + torch.diag_embed(ridge), q[:, :, t, :, None])
        outputs.append((s[..., width:].mT @ x)[..., 0])
    return torch.stack(outputs, 2), s
