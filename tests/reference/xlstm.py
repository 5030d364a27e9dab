"""Cells of xLSTM, token by token, without stabiliser (arXiv 2405.04517, eq. 8–27)."""

from __future__ import annotations

import torch
from torch import Tensor


def mlstm(q: Tensor, k: Tensor, v: Tensor, i: Tensor, f: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """h [h t v], C [h k v] and n [h k] of q, k [h t k], v [h t v], gates [h t]."""
    C = q.new_zeros(q.shape[0], q.shape[2], v.shape[2])
    n = q.new_zeros(q.shape[0], q.shape[2])
    rows = []
    for t in range(q.shape[1]):
        forget, enter = f[:, t].sigmoid(), i[:, t].exp()
        C = forget[:, None, None] * C + enter[:, None, None] * k[:, t, :, None] * v[:, t, None, :]
        n = forget[:, None] * n + enter[:, None] * k[:, t]
        seen = torch.einsum("hk,hk->h", n, q[:, t]).abs().clamp(min=1)
        rows.append(torch.einsum("hkv,hk->hv", C, q[:, t]) / seen[:, None])
    return torch.stack(rows, 1), C, n


def slstm(x: Tensor, R: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """h [t n e], c [n e] and n [n e] of pre-activations x [t 4 n e] (i, f, z, o), R [n 4 e e]."""
    c = norm = h = torch.zeros_like(x[0, 0])
    rows = []
    for pre in x:
        i, f, z, o = pre + torch.einsum("ngoe,ne->gno", R, h)
        c = f.sigmoid() * c + i.exp() * z.tanh()
        norm = f.sigmoid() * norm + i.exp()
        h = o.sigmoid() * c / norm
        rows.append(h)
    return torch.stack(rows), c, norm
