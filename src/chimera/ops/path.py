"""PaTH: softmax attention between tokens by accumulated Householder-like maps (arXiv 2505.16381).

    H_t = I − β_t w_t w_tᵀ,   score_ij = k_jᵀ (Π_{j<s≤i} H_s) q_i + bias_ij,   β ≤ 2, ‖w‖ = 1

(section 2.) A key is multiplied by H of each later token when that is read: the cache has keys as
the last token sees them, and no inverse is needed. Queries have h heads; keys, values and w have g.
A chunk of C tokens has rows of Q, K, W and one triangular system (section 3, UT transform):

    T = I + tril(β W Wᵀ, −1),   U = T⁻¹ (β W),   Y = T⁻¹ tril(β W Kᵀ, −1)
    scores of the chunk's keys        Q Kᵀ − tril(Q Wᵀ) Y              for j ≤ i
    of the keys X before it           (Q − tril(Q Wᵀ) U) Xᵀ
    next keys                         X − (X Uᵀ) W,   K − Yᵀ W         the loop over chunks

Chunks are computed at once, but for the keys before them. Costs t²·k, thrice that of attention,
and keeps the scores. Computes in float32 or wider, also under autocast.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Bool, Float
from torch import Tensor

from chimera.ops.precision import autocast_off, wide


class Moved(NamedTuple):
    """Attention's output, and all keys as the last token sees them."""

    y: Float[Tensor, "b h t v"]
    keys: Float[Tensor, "b g s k"]


def attend(
    q: Float[Tensor, "b h t k"],
    k: Float[Tensor, "b g t k"],
    values: Float[Tensor, "b g s v"],
    w: Float[Tensor, "b g t k"],
    beta: Float[Tensor, "b g t"],
    past: Float[Tensor, "b g p k"] | None = None,
    *,
    visible: Bool[Tensor, "#b 1 t s"],
    bias: Float[Tensor, "#b h t s"] | None = None,
    dropout: float = 0.0,
    chunk: int = 64,
) -> Moved:
    """Attention of t tokens over p past ones and themselves, s = p + t.

    Args:
        q, k: queries, scaled by the caller, and keys.
        values: of the past tokens and of these.
        w: unit vectors of the maps.
        beta: their strengths; 0, the identity, for padding.
        past: keys of past tokens as the last of them saw them.
        visible: True where a query may attend to a key; each query has to see one.
        bias: added to the scores.
        dropout: probability, applied to the attention weights.
        chunk: tokens in a chunk; changes only speed.
    """
    tokens, dtype, g = q.shape[2], wide(q, values), k.shape[1]
    size, reads = min(chunk, tokens), q.shape[1] // g
    with autocast_off(q):
        q, k, w, values = (x.to(dtype) for x in (q, k, w, values))
        keys = k[:, :, :0] if past is None else past.to(dtype)
        p = keys.shape[2]
        q = rearrange(q, "b (g r) t k -> b g t r k", g=g)
        cut = "b g (m c) k -> m b g c k"
        q = rearrange(
            _filled(q.flatten(3), size), "b g (m c) (r k) -> m b g r c k", c=size, r=reads
        )
        k, w, beta = (
            rearrange(_filled(x, size), cut, c=size) for x in (k, w, beta.to(dtype)[..., None])
        )
        seen = (q @ w[:, :, :, None].mT).tril()
        u, y = _maps(k, w, beta)
        own = q @ k[:, :, :, None].mT - seen @ y[:, :, :, None]
        q = q - seen @ u[:, :, :, None]
        moved = k - y.mT @ w
        outputs = []
        for m in range(len(q)):
            first, last = m * size, min((m + 1) * size, tokens)
            before = q[m].flatten(2, 3) @ keys.mT
            scores = torch.cat([before.unflatten(2, (reads, size)), own[m]], -1)
            scores = scores[:, :, :, : last - first, : p + last].flatten(1, 2)
            if bias is not None:
                scores = scores + bias[:, :, first:last, : p + last]
            scores = scores.masked_fill(~visible[:, :, first:last, : p + last], float("-inf"))
            weights = F.dropout(scores.softmax(-1), dropout)
            weights = weights.unflatten(1, (g, reads)).flatten(2, 3)
            read = weights @ values[:, :, : p + last]
            outputs.append(read.unflatten(2, (reads, last - first)).flatten(1, 2))
            keys = torch.cat([keys - (keys @ u[m].mT) @ w[m], moved[m]], 2)
        return Moved(torch.cat(outputs, 2), keys[:, :, : p + tokens])


def _maps(k: Tensor, w: Tensor, beta: Tensor) -> tuple[Tensor, ...]:
    """All maps of each chunk as one matrix: its part for earlier keys, and that for its own."""
    maps = torch.cat([beta * w, (beta * (w @ k.mT)).tril(-1)], -1)
    within = (beta * (w @ w.mT)).tril(-1)
    maps = torch.linalg.solve_triangular(within, maps, upper=False, unitriangular=True)
    return maps.split((k.shape[-1], k.shape[-2]), -1)


def _filled(x: Float[Tensor, "b g t k"], size: int) -> Float[Tensor, "b g n k"]:
    """Zeros, maps that do nothing, fill the last chunk."""
    return F.pad(x, (0, 0, 0, -x.shape[2] % size))
