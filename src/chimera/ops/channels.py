"""Decayed linear recurrence with a decay per channel of the keys (GLA, arXiv 2312.06635, eq. 3).

    S_t = diag(exp(g_t)) S_{t−1} + k_t v_tᵀ,    o_t = S_tᵀ q_t,    g_t ≤ 0            (causal)

Shapes: q, k, g [b h t k]; v, o [b h t v]; state S [b h k v]. As `ops.decay`, whose decay is per
token; all forms give the same numbers. Within chunks the weights come from `ops.pairs`, which never
divides by a decay; states come from `ops.carry`. All arguments of
exp are ≤ 0. Computes in float32 or wider, also under autocast; o and the state have this dtype.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Bool, Float
from torch import Tensor

from chimera.ops.carry import carry
from chimera.ops.pairs import pairs
from chimera.ops.precision import autocast_off, wide

State = Float[Tensor, "b h k v"]


def chunkwise(
    q: Float[Tensor, "b h t k"],
    k: Float[Tensor, "b h t k"],
    v: Float[Tensor, "b h t v"],
    g: Float[Tensor, "b h t k"],
    state: State | None = None,
    *,
    chunk: int = 64,
) -> tuple[Float[Tensor, "b h t v"], State | None]:
    """Linear cost in t: quadratic inside chunks of `chunk` tokens, a state between chunks.

    Args:
        q, k, v: queries, keys and values; the caller applies scaling and activations.
        g: log-decay of each channel before each token, ≤ 0.
        state: state before the first token. None: zeros, and no state is returned.
        chunk: tokens in a chunk, a power of two; changes only speed.

    Returns:
        o, and the state after the last token (None if `state` is None).

    Raises:
        ValueError: `chunk` is no power of two.
    """
    tokens, dtype = q.shape[2], wide(q, v)
    size = chunk_size(chunk, tokens)
    b, h = v.shape[:2]
    with autocast_off(q):
        q, k, v, g = (
            chunked(x.to(dtype), size, "b h (m c) k -> (b h m) c k") for x in (q, k, v, g)
        )
        read = q * g.exp()
        within = pairs(read[:, :, None], k[:, :, None], g)
        y = (within.products[0, 0] + torch.diag_embed((q * k).sum(-1))) @ v
        if state is not None or tokens > size:
            sums = (k * within.after.exp()).mT @ v
            sums = rearrange(sums, "(b h m) k v -> (b h k) m v", b=b, h=h)
            total = rearrange(within.whole, "(b h m) k -> (b h k) m", b=b, h=h)
            first = None if state is None else state.to(dtype).flatten(0, 2)
            before, last = carry(sums, total, first)
            before = rearrange(before, "(b h k) m v -> (b h m) k v", b=b, h=h)
            y = torch.baddbmm(y, read * within.before.exp(), before)
        y = rearrange(y, "(b h m) c v -> b h (m c) v", b=b, h=h)
    return y[:, :, :tokens], None if state is None else last.view(state.shape)


def step(
    q: Float[Tensor, "b h 1 k"],
    k: Float[Tensor, "b h 1 k"],
    v: Float[Tensor, "b h 1 v"],
    g: Float[Tensor, "b h 1 k"],
    state: State,
) -> tuple[Float[Tensor, "b h 1 v"], State]:
    """One token of the recurrence. Arguments and result as for `chunkwise`."""
    dtype = wide(q, v)
    with autocast_off(q):
        q, k, v, g = (x.to(dtype) for x in (q, k, v, g))
        state = g.exp().mT * state.to(dtype) + k.mT @ v
        return q @ state, state


def masked(mask: Bool[Tensor, "b t"] | None, *inputs: Tensor) -> tuple[Tensor, ...]:
    """Set inputs [b h t …] of padded tokens (mask False) to 0: no input, no step, no decay."""
    if mask is None:
        return inputs
    padded = ~mask[:, None]
    return tuple(x.masked_fill(padded if x.ndim == 3 else padded[..., None], 0) for x in inputs)


def power_of_two(tokens: int) -> int:
    """Smallest power of two that is not below `tokens`."""
    return 1 << (tokens - 1).bit_length()


def chunk_size(chunk: int, tokens: int) -> int:
    """Tokens in a chunk, none larger than the sequence needs; ValueError for no power of two."""
    if chunk != power_of_two(chunk):
        raise ValueError(f"chunk={chunk} is no power of two: choose {power_of_two(chunk)}")
    return min(chunk, power_of_two(tokens))


def chunked(x: Tensor, size: int, pattern: str) -> Tensor:
    """Split x [b h t k] into chunks of `size` tokens; zeros fill the last one."""
    if missing := -x.shape[2] % size:
        x = F.pad(x, (0, 0, 0, missing))
    return rearrange(x, pattern, c=size).contiguous()
