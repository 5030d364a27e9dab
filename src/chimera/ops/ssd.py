"""Decayed linear recurrence whose heads share queries and keys: Mamba-2's SSD (arXiv 2405.21060).

    S_t = exp(g_t) S_{t−1} + Δ_t k_t v_tᵀ,    o_t = S_tᵀ q_t + D v_t,    g_t ≤ 0 per token and head

As `ops.decay` with a decay per token, where the r value heads of a group have the same q and k (the
paper's multi-value heads, section 7.2; q is its C, k its B, v its x). The products with q and k
then are computed once per group, with the values V = Δ v of its heads side by side:

    O = ((Q Kᵀ) ⊙ L_h) V_h  +  Γ_h ⊙ (Q [S_1 … S_r])_h         within chunks, and from their starts
    [S_1 … S_r] ← decayed + Kᵀ [Γ'_1 V_1 … Γ'_r V_r]                                (section 6, 1–4)

The weights L and Γ are those of `ops.pairs`: all arguments of exp are ≤ 0, and none is the
difference of two sums. Computes in float32 or wider, also under autocast; o and the state have this
wide dtype (kernels of `recurrence`: o is bf16).
"""

from __future__ import annotations

from typing import Any

import torch
from einops import rearrange, repeat
from jaxtyping import Bool, Float
from torch import Tensor

from chimera.ops import decay, recurrence
from chimera.ops.carry import between, carry
from chimera.ops.channels import chunk_size, chunked
from chimera.ops.precision import autocast_off, wide, widen

State = Float[Tensor, "b h k v"]


def chunkwise(
    q: Float[Tensor, "b n t k"],
    k: Float[Tensor, "b n t k"],
    v: Float[Tensor, "b h t v"],
    g: Float[Tensor, "b h t"],
    delta: Float[Tensor, "b h t"],
    state: State | None = None,
    skip: Float[Tensor, " h"] | None = None,
    *,
    chunk: int = 64,
) -> tuple[Float[Tensor, "b h t v"], State | None]:
    """Linear cost in t: quadratic inside chunks of `chunk` tokens, a state between chunks.

    Args:
        q, k: queries and keys of n groups; h is a multiple of n, heads of a group are adjacent.
        v: values of h heads.
        g: log-decay before each token.
        delta: step sizes Δ.
        state: state before the first token. None: zeros, and no state is returned.
        skip: D of each head; None for 0.
        chunk: tokens in a chunk, a power of two; changes only speed.

    Returns:
        o, and the state after the last token (None if `state` is None).

    Raises:
        ValueError: `chunk` is no power of two.
    """
    if state is None and recurrence.serves(q, v, rule=False):
        skip = None if skip is None else skip.float().contiguous()
        return recurrence.chunkwise(q, k, v, g, delta, skip, rule=False, half=True), None
    tokens, groups, dtype, passed = q.shape[2], q.shape[1], wide(q, v), _passed(v, skip)
    b, h = v.shape[:2]
    size = chunk_size(chunk, tokens)
    with autocast_off(q):
        q, k = (chunked(x.to(dtype), size, "b n (m c) k -> b n m c k") for x in (q, k))
        v = chunked(v.to(dtype) * delta[..., None], size, "b h (m c) v -> b h m c v")
        g = chunked(g.to(dtype)[..., None], size, "b h (m c) 1 -> (b h m) c")
        w, own = between(g), g.exp()[..., None]
        inside = w.products[0, 0] * own + torch.eye(size, dtype=dtype, device=g.device)
        inside = rearrange(inside, "(b n r m) i j -> b n r m i j", b=b, n=groups, m=v.shape[2])
        y = ((q @ k.mT)[:, :, None] * inside).flatten(1, 2) @ v
        if state is not None or tokens > size:
            to_end = w.after.exp().view(*v.shape[:4], 1)
            sums = _apart(k.mT @ _side_by_side(v * to_end, groups), v)
            total = rearrange(w.whole, "(b h m) 1 -> (b h) m", b=b, h=h)
            first = None if state is None else state.to(dtype).flatten(2).flatten(0, 1)
            before, last = carry(sums.flatten(3).flatten(0, 1), total, first)
            before = _side_by_side(before.view(sums.shape), groups)
            y = y + _apart(q @ before, v) * (w.before.exp() * own).view(to_end.shape)
        y = rearrange(y, "b h m i v -> b h (m i) v")
    return y[:, :, :tokens] + passed, None if state is None else last.view(state.shape)


def step(
    q: Float[Tensor, "b n 1 k"],
    k: Float[Tensor, "b n 1 k"],
    v: Float[Tensor, "b h 1 v"],
    g: Float[Tensor, "b h 1"],
    delta: Float[Tensor, "b h 1"],
    state: State,
    skip: Float[Tensor, " h"] | None = None,
) -> tuple[Float[Tensor, "b h 1 v"], State]:
    """One token of the recurrence. Arguments and result as for `chunkwise`."""
    heads = v.shape[1] // q.shape[1]
    q, k = (repeat(x, "b n t k -> b (n r) t k", r=heads) for x in (q, k))
    y, state = decay.step(q, k, widen(v) * delta[..., None], g, state)
    return y + _passed(v, skip), state


def masked(
    delta: Float[Tensor, "b t h"], mask: Bool[Tensor, "b t"] | None
) -> Float[Tensor, "b t h"]:
    """Set the step size Δ of padded tokens (mask False) to 0: no input, no decay."""
    return delta if mask is None else delta.masked_fill(~mask[..., None], 0)


def _passed(v: Float[Tensor, "b h t v"], skip: Float[Tensor, " h"] | None) -> Any:
    return 0 if skip is None else widen(v) * skip[:, None, None]


def _side_by_side(x: Float[Tensor, "b h m i v"], groups: int) -> Float[Tensor, "b n m i rv"]:
    return rearrange(x, "b (n r) m i v -> b n m i (r v)", n=groups)


def _apart(
    x: Float[Tensor, "b n m i rv"], like: Float[Tensor, "b h m j v"]
) -> Float[Tensor, "b h m i v"]:
    return rearrange(x, "b n m i (r v) -> b (n r) m i v", v=like.shape[-1])
