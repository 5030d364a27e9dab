"""Decayed linear recurrence token by token, and its bidirectional form pair by pair."""

from __future__ import annotations

import torch
from torch import Tensor


def recurrence(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor | None = None, state: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """S_t = exp(g_t) S_{t-1} + k_t v_tᵀ, o_t = S_tᵀ q_t."""
    b, h, t, _ = q.shape
    log = torch.zeros(h).to(q) if g is None else g
    log = (log[None, :, None] if log.ndim == 1 else log).expand(b, h, t)
    s = q.new_zeros(b, h, k.shape[-1], v.shape[-1]) if state is None else state
    outputs = []
    for i in range(t):
        s = log[:, :, i, None, None].exp() * s + k[:, :, i, :, None] * v[:, :, i, None, :]
        outputs.append((s * q[:, :, i, :, None]).sum(-2))
    return torch.stack(outputs, 2), s


def both_sides(q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> Tensor:
    """o_n = Σ_m w_nm (q_n·k_m) v_m, where w_nm is the product of exp(g) between m and n."""
    t = q.shape[2]
    log = g[None, :, None].expand(1, -1, t) if g.ndim == 1 else g
    apart = [log[:, :, min(n, m) + 1 : max(n, m) + 1].sum(-1) for n in range(t) for m in range(t)]
    w = torch.stack(apart, -1).unflatten(-1, (t, t)).exp()
    return torch.einsum("bhnm,bhnm,bhmv->bhnv", w, torch.einsum("bhnk,bhmk->bhnm", q, k), v)
