"""Decayed linear recurrence, in all forms (SPEC M5, M6, M9; TITAN eq. 6-8, 31-32).

    S_t = exp(g_t) S_{t-1} + k_t v_tᵀ,    o_t = S_tᵀ q_t,    g_t ≤ 0               (causal)
    o_n = Σ_m exp(−|G_n − G_m|) (q_n·k_m) v_m,    G_n = Σ_{i≤n} g_i                (bidirectional)

Shapes: q, k [b h t k]; v [b h t v]; state S [b h k v]; o [b h t v]. The finite log-decay g is
    None          no decay (linear attention),
    [h]           constant per head (retention); fastest, weights are shared over b and chunks,
    [b h t]       one per token (b may be 1).
All forms give the same numbers. `chunkwise` costs t·chunk, t² in one chunk, `step` O(1) per token.

A padded token changes nothing if its k and g are zero (`masked` sets both). Accumulation is in
float32 or wider, also under autocast. o and the state have this wide dtype: a sum over 1000 tokens
may be beyond fp16, and the caller norms or divides it first. (Kernels of `fused`, for bf16 only: o
is bf16.) All arguments of exp are ≤ 0, so that no decay overflows.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from einops import rearrange, repeat
from jaxtyping import Bool, Float
from torch import Tensor

from chimera.ops import fused, recurrence
from chimera.ops.precision import autocast_off, wide

#: Number of chunks whose states one matrix product combines; longer sequences recurse on groups.
GROUP = 32
#: Log-decay over a chunk or a group from which on differences of sums are taken in float64: sums up
#: to it have an error of 8e-6 in float32.
LONG = 128.0

Decay = Float[Tensor, " h"] | Float[Tensor, "#b h t"] | None
State = Float[Tensor, "b h k v"]


def chunkwise(
    q: Float[Tensor, "b h t k"],
    k: Float[Tensor, "b h t k"],
    v: Float[Tensor, "b h t v"],
    g: Decay = None,
    state: State | None = None,
    *,
    causal: bool = True,
    chunk: int = 64,
) -> tuple[Float[Tensor, "b h t v"], State | None]:
    """Linear cost in t: quadratic inside chunks of `chunk` tokens, a state between chunks.

    Computes all chunks at once and combines their states by matrix products over groups of chunks;
    no loop runs over tokens or chunks.

    Args:
        q, k, v: queries, keys and values; the caller applies scaling and feature maps.
        g: log-decay, see the module's docstring.
        state: state before the first token. None: zeros, and no state is returned.
        causal: False for the bidirectional form, which has no state.
        chunk: tokens in a chunk; changes only speed.

    Returns:
        o, and the state after the last token (None if `state` is None).

    Raises:
        ValueError: a state was passed to the bidirectional form.
    """
    if state is not None and not causal:
        raise ValueError("causal=False takes no state: pass state=None, or causal=True")
    if causal and v.dtype == torch.bfloat16 and fused.suits(q, v, g):
        return fused.decayed(q, k, v, g, state)
    if causal and state is None and recurrence.serves(q, v, rule=False):
        rates = v.new_zeros(()) if g is None else g if g.ndim == 3 else g[:, None]
        return recurrence.chunkwise(q, k, v, rates.expand(v.shape[:3]), rule=False), None
    tokens = q.shape[2]
    q, k, v, g, state = _widen(q, k, v, g, state)
    with autocast_off(q):
        if g is None and not causal:
            return q @ (k.mT @ v), None  # all weights are 1
        size = min(chunk, tokens)
        missing = -tokens % size
        if g is not None and g.ndim == 1 and state is not None and missing:
            g = repeat(g, "h -> 1 h t", t=tokens)  # the state must not decay over padded places
        q, k, v = (_chunks(x, missing, size) for x in (q, k, v))
        w = _weights(g, missing, size, causal=causal, like=q)
        y = (q @ k.mT).mul_(w.inside) @ v
        if causal and (state is not None or q.shape[2] > 1):
            left, state = _before(_times(k, w.to_end).mT @ v, w.total, state)
            y += _times(q, w.to_start) @ left
        elif q.shape[2] > 1:
            left, _ = _before(_times(k, w.to_end).mT @ v, w.total)
            right = _behind(_times(k, w.to_start).mT @ v, w.total)
            y += _times(q, w.to_start) @ left
            y += _times(q, w.to_end) @ right
        y = rearrange(y, "b h n c v -> b h (n c) v")
    return y[:, :, :tokens], state


def step(
    q: Float[Tensor, "b h 1 k"],
    k: Float[Tensor, "b h 1 k"],
    v: Float[Tensor, "b h 1 v"],
    g: Decay,
    state: State,
) -> tuple[Float[Tensor, "b h 1 v"], State]:
    """One token of the recurrence. Arguments and result as for `chunkwise`."""
    q, k, v, g, state = _widen(q, k, v, g, state)
    with autocast_off(q):
        new = k.mT * v  # an outer product: the same numbers as the matrix product, sooner
        if g is not None:
            state = state * (g[:, None, None] if g.ndim == 1 else g[..., None]).exp()
        new = new + state
        return q @ new, new


def masked(
    k: Float[Tensor, "b h t k"], g: Decay, mask: Bool[Tensor, "b t"] | None
) -> tuple[Float[Tensor, "b h t k"], Decay]:
    """Set k and g of padded tokens (mask False) to 0: no input, no decay."""
    if mask is None:
        return k, g
    if g is not None:
        g = torch.where(mask[:, None], g[:, None] if g.ndim == 1 else g, 0)
    return k.masked_fill(~mask[:, None, :, None], 0), g


def weights(g: Float[Tensor, "*n t"], *, causal: bool = True) -> Float[Tensor, "*n t t"]:
    """Weight matrix: exp(G_n − G_m) for m ≤ n; above the diagonal 0 (causal) or exp(G_m − G_n)."""
    apart = differences(g, g.cumsum(-1))
    upper = torch.ones(apart.shape[-2:], dtype=torch.bool, device=g.device).triu(1)
    apart = apart.masked_fill(upper, float("-inf")) if causal else apart.where(~upper, -apart)
    return apart.exp()


class _Weights(NamedTuple):
    """Decay within chunks of c tokens, between a token and both ends of its chunk, over chunks."""

    inside: Float[Tensor, "#b #h #n c c"]
    to_start: Float[Tensor, "#b #h #n c 1"] | None  # from the state before the chunk to a token
    to_end: Float[Tensor, "#b #h #n c 1"] | None  # from a token to the state after the chunk
    total: Float[Tensor, "#b #h n"]  # log-decay of each chunk


def _weights(g: Tensor | None, missing: int, size: int, *, causal: bool, like: Tensor) -> _Weights:
    n = like.shape[2]
    if g is None:
        ones = like.new_ones(1, 1, 1, size, size)
        return _Weights(ones.tril(), None, None, like.new_zeros(1, 1, n))
    if g.ndim == 1:
        g = repeat(g, "h -> 1 h 1 c", c=size)
    else:
        g = rearrange(F.pad(g, (0, missing)), "b h (n c) -> b h n c", c=size)
    start = g.cumsum(-1)
    after = F.pad(g.flip(-1).cumsum(-1).flip(-1)[..., 1:], (0, 1))
    total = start[..., -1].expand(-1, -1, n)
    return _Weights(
        weights(g, causal=causal), start.exp()[..., None], after.exp()[..., None], total
    )


def _before(
    sums: Float[Tensor, "b h n k v"], total: Float[Tensor, "#b #h n"], state: State | None = None
) -> tuple[Float[Tensor, "b h n k v"], State | None]:
    """States before each of n chunks, and the last; each chunk decays by `total`, adds `sums`."""
    n = sums.shape[2]
    if n <= GROUP:
        if state is None:
            return _combine(_gaps(total)[..., :-1, :], sums), None
        states = _combine(_gaps(total), sums)
        kept = F.pad(total.cumsum(-1), (1, 0)).exp()
        states = states + kept[..., None, None] * state[:, :, None]
        return states[:, :, :-1], states[:, :, -1]
    missing = -n % GROUP
    sums = F.pad(sums, (0, 0, 0, 0, 0, missing))
    sums = rearrange(sums, "b h (m n) k v -> b h m n k v", n=GROUP)
    total = rearrange(F.pad(total, (0, missing)), "b h (m n) -> b h m n", n=GROUP)
    inner = _combine(_gaps(total), sums)
    outer, state = _before(inner[..., -1, :, :], total.sum(-1), state)
    kept = F.pad(total.cumsum(-1)[..., :-1], (1, 0)).exp()[..., None, None]
    states = inner[..., :-1, :, :] + kept * outer[:, :, :, None]
    return rearrange(states, "b h m n k v -> b h (m n) k v")[:, :, :n], state


def _behind(
    sums: Float[Tensor, "b h n k v"], total: Float[Tensor, "#b #h n"]
) -> Float[Tensor, "b h n k v"]:
    """Mirror image of `_before`: decayed sums over the chunks to the right of each chunk."""
    if sums.shape[2] <= GROUP:
        return _combine(_gaps(total)[..., :-1, :].mT, sums)
    states, _ = _before(sums.flip(2), total.flip(-1))
    return states.flip(2)


def _gaps(total: Float[Tensor, "*b n"]) -> Float[Tensor, "*b n+1 n"]:
    """exp of the log-decay between the end of chunk m and the start of chunk n, for m < n."""
    apart = differences(total, F.pad(total.cumsum(-1), (1, 0)))
    later = torch.ones(apart.shape[-2:], dtype=torch.bool, device=apart.device).triu()
    return apart.masked_fill(later, float("-inf")).exp()


def differences(g: Float[Tensor, "*b n"], total: Float[Tensor, "*b r"]) -> Float[Tensor, "*b r n"]:
    """Sums of g between two places: G_r − G_s.

    Where the sums are long, the difference of two of them is off by their rounding: by 6e-3 in
    float32 beside a chunk that decays by e⁻⁶⁰⁰⁰⁰. There, and only there, it is taken in float64, so
    that all others keep their bits.

    Args:
        g: log-decays.
        total: G, their sums; with one more, from before the first.
    """
    first = total.shape[-1] - g.shape[-1]
    apart = total[..., :, None] - total[..., None, first:]
    if g.dtype == torch.float64 or g.device.type == "mps":  # MPS has no float64
        return apart
    exact = F.pad(g.double().cumsum(-1), (first, 0))
    exact = (exact[..., :, None] - exact[..., None, first:]).to(g.dtype)
    return torch.where(total[..., -1:, None] < -LONG, exact, apart)


def _combine(
    decay: Float[Tensor, "*#b r n"], sums: Float[Tensor, "*b n k v"]
) -> Float[Tensor, "*b r k v"]:
    return (decay @ sums.flatten(-2)).unflatten(-1, sums.shape[-2:])


def _times(x: Tensor, weight: Tensor | None) -> Tensor:
    return x if weight is None else x * weight


def _chunks(x: Tensor, missing: int, size: int) -> Tensor:
    if missing:
        x = F.pad(x, (0, 0, 0, missing))
    # The heads are a strided view; without one copy here, every product below copies the view.
    return rearrange(x.contiguous(), "b h (n c) k -> b h n c k", c=size)


def _widen(q: Tensor, k: Tensor, v: Tensor, g: Decay, state: State | None) -> tuple:
    """Convert all to one dtype, float32 or wider."""
    dtype = wide(q, v)
    q, k, v = q.to(dtype), k.to(dtype), v.to(dtype)
    return q, k, v, None if g is None else g.to(dtype), None if state is None else state.to(dtype)
