"""Decayed linear recurrence whose heads share queries and keys: Mamba-2's SSD (arXiv 2405.21060).

    S_t = exp(g_t) S_{t−1} + k_t v_tᵀ,    o_t = S_tᵀ q_t,    g_t ≤ 0 per token and value head

As `ops.decay` with a decay per token, where the r value heads of a group have the same q and k (the
paper's multi-value heads, section 7.2; q is its C, k its B, v its Δ x). The products with q and k
then are computed once per group, with the values of its heads side by side:

    O = ((Q Kᵀ) ⊙ L_h) V_h  +  Γ_h ⊙ (Q [S_1 … S_r])_h         within chunks, and from their starts
    [S_1 … S_r] ← decayed + Kᵀ [Γ'_1 V_1 … Γ'_r V_r]                                (section 6, 1–4)

All arguments of exp are ≤ 0. Computes in float32 or wider, also under autocast; o and the state
have this wide dtype.
"""

from __future__ import annotations

from einops import rearrange, repeat
from jaxtyping import Bool, Float
from torch import Tensor

from chimera.ops import decay
from chimera.ops.precision import autocast_off, wide

State = Float[Tensor, "b h k v"]


def chunkwise(
    q: Float[Tensor, "b n t k"],
    k: Float[Tensor, "b n t k"],
    v: Float[Tensor, "b h t v"],
    g: Float[Tensor, "b h t"],
    state: State | None = None,
    *,
    chunk: int = 64,
) -> tuple[Float[Tensor, "b h t v"], State | None]:
    """Linear cost in t: quadratic inside chunks of `chunk` tokens, a state between chunks.

    Args:
        q, k: queries and keys of n groups; h is a multiple of n, heads of a group are adjacent.
        v: values of h heads.
        g: log-decay before each token.
        state: state before the first token. None: zeros, and no state is returned.
        chunk: tokens in a chunk; changes only speed.

    Returns:
        o, and the state after the last token (None if `state` is None).
    """
    tokens, groups, dtype = q.shape[2], q.shape[1], wide(q, v)
    with autocast_off(q):
        q, k, v, g = (x.to(dtype) for x in (q, k, v, g))
        size = min(chunk, tokens)
        missing = -tokens % size
        q, k, v = (decay.chunked(x, missing, size) for x in (q, k, v))
        w = decay.chunk_weights(g, missing, size, causal=True, like=q)
        inside = rearrange(w.inside, "b (n r) m i j -> b n r m i j", n=groups)
        y = ((q @ k.mT)[:, :, None] * inside).flatten(1, 2) @ v
        if state is not None or q.shape[2] > 1:
            sums = k.mT @ _side_by_side(decay.times(v, w.to_end), groups)
            before, state = decay.states_before(
                _apart(sums, v), w.total, None if state is None else state.to(dtype)
            )
            read = _apart(q @ _side_by_side(before, groups), v)
            y = y + decay.times(read, w.to_start)
        y = rearrange(y, "b h m i v -> b h (m i) v")
    return y[:, :, :tokens], state


def step(
    q: Float[Tensor, "b n 1 k"],
    k: Float[Tensor, "b n 1 k"],
    v: Float[Tensor, "b h 1 v"],
    g: Float[Tensor, "b h 1"],
    state: State,
) -> tuple[Float[Tensor, "b h 1 v"], State]:
    """One token of the recurrence. Arguments and result as for `chunkwise`."""
    heads = v.shape[1] // q.shape[1]
    q, k = (repeat(x, "b n t k -> b (n r) t k", r=heads) for x in (q, k))
    return decay.step(q, k, v, g, state)


def masked(
    delta: Float[Tensor, "b t h"], mask: Bool[Tensor, "b t"] | None
) -> Float[Tensor, "b t h"]:
    """Set the step size Δ of padded tokens (mask False) to 0: no input, no decay."""
    return delta if mask is None else delta.masked_fill(~mask[..., None], 0)


def _side_by_side(x: Float[Tensor, "b h m i v"], groups: int) -> Float[Tensor, "b n m i rv"]:
    return rearrange(x, "b (n r) m i v -> b n m i (r v)", n=groups)


def _apart(
    x: Float[Tensor, "b n m i rv"], like: Float[Tensor, "b h m j v"]
) -> Float[Tensor, "b h m i v"]:
    return rearrange(x, "b n m i (r v) -> b (n r) m i v", v=like.shape[-1])
