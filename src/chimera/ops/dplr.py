"""Recurrence whose transition is diagonal plus a rank-one term, in all forms.

    S_t = (diag(exp(g_t)) + b_t a_tᵀ) S_{t−1} + k_t v_tᵀ,    o_t = S_tᵀ q_t,    g_t ≤ 0

    Kimi Delta Attention   a = −β k ⊙ exp(g),  b = k,  v = β v       (arXiv 2510.26692, eq. 1)
    RWKV-7                 a = −κ̂,  b = α ⊙ κ̂                         (arXiv 2503.14456, section 4)

Shapes: q, k, a, b, g [b h t k]; v, o [b h t v]; state S [b h k v]. In a chunk with S before its
first token, [s, r] the weight of what token r wrote for the reader s (`ops.pairs`, which never
divides by a decay), and y_t = S_{t−1}ᵀ a_t what token t reads before it writes:

    y = T⁻¹ (A S + [a, k] v),    T = I − [a, b]                       independent of S: T⁻¹ [a, k] v
    o = Q S + [q, b] y + [q, k] v,    S ← diag(Γ) S + B̂ᵀ y + K̂ᵀ v     the only loop over chunks

This is `delta.Chunks` with a decay per channel. With b = k, the writes y + v are one. Memory stays
bounded if diag(exp(g)) + b aᵀ is no longer than 1, as in both cases. All arguments of exp are ≤ 0.
Computes in float32 or wider, also under autocast; o and the state have this wide dtype.
"""

from __future__ import annotations

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from chimera.ops import channels
from chimera.ops.delta import Chunks
from chimera.ops.pairs import pairs
from chimera.ops.precision import autocast_off, wide

State = Float[Tensor, "b h k v"]


def chunkwise(
    q: Float[Tensor, "b h t k"],
    k: Float[Tensor, "b h t k"],
    v: Float[Tensor, "b h t v"],
    a: Float[Tensor, "b h t k"],
    b: Float[Tensor, "b h t k"] | None,
    g: Float[Tensor, "b h t k"],
    state: State | None = None,
    *,
    chunk: int = 64,
) -> tuple[Float[Tensor, "b h t v"], State | None]:
    """Linear cost in t: quadratic inside chunks of `chunk` tokens, a state between chunks.

    Args:
        q, k, v: queries, keys and values; the caller applies scaling, norms and step sizes.
        a: reads the state before the token's decay.
        b: writes what `a` read; None for `k`, which is faster.
        g: log-decay of each channel before each token, ≤ 0.
        state: state before the first token. None: zeros, and no state is returned.
        chunk: tokens in a chunk, a power of two; changes only speed.

    Returns:
        o, and the state after the last token (None if `state` is None).

    Raises:
        ValueError: `chunk` is no power of two.
    """
    tokens, dtype = q.shape[2], wide(q, v)
    size = channels.chunk_size(chunk, tokens)
    shape = (*v.shape[:2], k.shape[-1], v.shape[-1])
    with autocast_off(q):
        writers = [k] if b is None else [b, k]
        split = "b h (m c) k -> (m b h) c k"
        q, v, a, g = (channels.chunked(x.to(dtype), size, split) for x in (q, v, a, g))
        w = torch.stack([channels.chunked(x.to(dtype), size, split) for x in writers], 2)
        read = q * g.exp()
        within = pairs(torch.stack([a, read], 2), w, g)
        p, start = within.products, within.before.exp()
        own = p[1] + torch.diag_embed((w * q[:, :, None]).sum(-1).movedim(2, 0))
        write = w * within.after.exp()[:, :, None]
        first = q.new_zeros(shape) if state is None else state.to(dtype)
        parts = (-p[0, 0], own[0], v if b is None else p[0, 1] @ v, -a * start, read * start)
        extra = () if b is None else (write[:, :, 1].mT @ v,)
        keep = within.whole.exp()
        y, last = Chunks.apply(*parts, write[:, :, 0], keep, first.flatten(0, 1), *extra)
        if b is not None:
            y = torch.baddbmm(y, own[1], v)
        y = rearrange(y, "(m b h) c v -> b h (m c) v", b=shape[0], h=shape[1])
    return y[:, :, :tokens], None if state is None else last.view(shape)


def step(
    q: Float[Tensor, "b h 1 k"],
    k: Float[Tensor, "b h 1 k"],
    v: Float[Tensor, "b h 1 v"],
    a: Float[Tensor, "b h 1 k"],
    b: Float[Tensor, "b h 1 k"] | None,
    g: Float[Tensor, "b h 1 k"],
    state: State,
) -> tuple[Float[Tensor, "b h 1 v"], State]:
    """One token of the recurrence. Arguments and result as for `chunkwise`."""
    dtype = wide(q, v)
    with autocast_off(q):
        q, k, v, a, g, state = (x.to(dtype) for x in (q, k, v, a, g, state))
        b = k if b is None else b.to(dtype)
        state = g.exp().mT * state + b.mT @ (a @ state) + k.mT @ v
        return q @ state, state
