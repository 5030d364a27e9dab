"""PaTH by its definition: a product of matrices between each two tokens (arXiv 2505.16381)."""

from __future__ import annotations

import torch
from torch import Tensor


def path(q: Tensor, k: Tensor, v: Tensor, w: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
    """q, k, w [b h t k], v [b h t v], beta [b h t]: outputs, and keys as the last token sees them.

    score_ij = k_jᵀ H_{j+1} … H_i q_i for j ≤ i, H_s = I − β_s w_s w_sᵀ.
    """
    one, outputs, keys = torch.eye(k.shape[-1], dtype=k.dtype), [], []
    for i in range(q.shape[2]):
        product, scores, keys = one.expand(*q.shape[:2], *one.shape), [], []
        for j in range(i, -1, -1):
            keys.insert(0, product.mT @ k[:, :, j, :, None])
            scores.insert(0, (keys[0] * q[:, :, i, :, None]).sum((-1, -2)))
            move = one - beta[:, :, j, None, None] * w[:, :, j, :, None] * w[:, :, j, None]
            product = move @ product
        weights = torch.stack(scores, -1).softmax(-1)
        outputs.append(torch.einsum("bhs,bhsv->bhv", weights, v[:, :, : i + 1]))
    return torch.stack(outputs, 2), torch.stack(keys, 2)[..., 0]
