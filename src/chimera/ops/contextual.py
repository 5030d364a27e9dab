"""Contextual positions: tokens are counted by gates that depend on their content (CoPE).

    g_ij = σ(q_i·k_j/√k),   p_ij = min(Σ_{l between j and i} g_il, P),                 (eq. 3, 4)
    b_ij = (q_i·e[p_ij])/√k,  linear between the whole numbers below and above p_ij    (eq. 5)

The sum includes j and i and skips tokens that i does not see. In a decoder j ≤ i, so that it is
the sum over l = j … i; where j > i, in an encoder, over l = i … j (arXiv 2405.18719). Shapes: q
[b h t k] are the last t of s tokens, k [b g s k], table e [P + 1 k], b [b h t s].
"""

from __future__ import annotations

import torch
from einops import rearrange
from jaxtyping import Bool, Float
from torch import Tensor

from chimera.ops.precision import autocast_off, wide


def contextual_bias(
    q: Float[Tensor, "b h t k"],
    k: Float[Tensor, "b g s k"],
    table: Float[Tensor, "p k"],
    visible: Bool[Tensor, "#b 1 t s"] | None,
    *,
    causal: bool,
) -> Float[Tensor, "b h t s"]:
    """Bias of the scores, in float32 or wider."""
    dtype, groups = wide(q, table), k.shape[1]
    with autocast_off(q):
        scaled = rearrange(q.to(dtype) * q.shape[-1] ** -0.5, "b (g r) t k -> b g r t k", g=groups)
        scores = torch.einsum("bgrtk,bgsk->bgrts", scaled, k.to(dtype)).flatten(1, 2)
        gates = scores.sigmoid()
        if visible is not None:
            gates = gates.masked_fill(~visible, 0.0)
        counts = _counts(gates, causal=causal).clamp(max=len(table) - 1)
        by_position = torch.einsum("bgrtk,pk->bgrtp", scaled, table.to(dtype)).flatten(1, 2)
        low = counts.detach().floor()
        share = counts - low
        below = by_position.gather(-1, low.long())
        above = by_position.gather(-1, (low.long() + 1).clamp(max=len(table) - 1))
        return below * (1 - share) + above * share


def _counts(gates: Float[Tensor, "b h t s"], *, causal: bool) -> Float[Tensor, "b h t s"]:
    """Sum of the gates from each key to the query, both included."""
    t, s = gates.shape[-2:]
    key = torch.arange(s, device=gates.device)
    query = torch.arange(s - t, s, device=gates.device)[:, None]
    past = gates.masked_fill(key > query, 0.0)
    counts = past.flip(-1).cumsum(-1).flip(-1)
    if causal:
        return counts
    return counts.where(key <= query, gates.masked_fill(key < query, 0.0).cumsum(-1))
