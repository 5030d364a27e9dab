"""Delta rule and DeltaProduct: chunkwise, recurrent (SPEC M11, E1; TPTT eq. 9-21;
arXiv 2102.11174, 2406.06484, 2502.10297).

    h ← exp(g_t) h                                                    once per token, g_t ≤ 0
    h ← h + k_tj (β_tj ⊙ v_tj − hᵀ(β_tj ⊙ k_tj))ᵀ                     for j = 1 … n
    o_t = hᵀ q_t                                                      after the last j

β has one number per step, or one per channel. As in eq. 14-15, β scales the value and the key
that reads the state; it does not scale the key that writes. A chunk has C tokens, N = n·C steps.
h is the state at the start of the chunk, rows of K and V are steps, Γ is the decay since the start
of the chunk, L_sr = Γ_s/Γ_r (without decay, Γ = L = 1):

    T = I + tril((K⊙β)Kᵀ ⊙ L, −1)                    E1: plus, where eq. 15 and 18 have minus
    U = T⁻¹(V⊙β),  W = T⁻¹(Γ(K⊙β))                   independent of h: all chunks at once
    h ← (Γ_N I − K̂ᵀW) h + K̂ᵀU,  K̂_s = (Γ_N/Γ_s) K_s   the only loop over chunks
    O = Γ(Q h) + tril(QKᵀ ⊙ L)(U − W h)              E1: a token reads after its own update

All arguments of exp are ≤ 0. Computes in float32 or wider, also under autocast; o and the state
have this wide dtype (kernels: o has the dtype of v, or bf16). The number of query heads h may be
a multiple of the number of key-value heads g; the queries of a group then read the same state.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Bool, Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from chimera.ops import fused, recurrence
from chimera.ops.decay import LONG, differences
from chimera.ops.precision import autocast_off, wide, widen

#: Steps in a chunk, measured: smaller chunks need more states, larger ones more work within chunks.
STEPS = 64

State = Float[Tensor, "b g k v"]
#: (state after a chunk, index of the chunk) -> state before the next chunk.
Between = Callable[[State, int], State]


def chunkwise(
    q: Float[Tensor, "b h t k"],
    k: Float[Tensor, "b g t n k"],
    v: Float[Tensor, "b g t n v"],
    beta: Float[Tensor, "b g t n #k"],
    decay: Float[Tensor, "b g t"] | None = None,
    state: State | None = None,
    *,
    chunk: int | None = None,
    between: Between | None = None,
) -> tuple[Float[Tensor, "b h t v"], State | None]:
    """Linear cost in t: quadratic inside chunks of `chunk` tokens, a state between chunks.

    Args:
        q: queries, one per token and query head.
        k, v: keys and values of the n steps of each token; ‖k‖ ≤ 1 keeps the state bounded.
        beta: step sizes; one per channel requires equal key and value width.
        decay: log-decay before each token, ≤ 0; None for no decay.
        state: state before the first token. None: zeros, and no state is returned.
        chunk: tokens in a chunk; changes only speed, unless `between` is given. None: as many
            tokens as have `STEPS` steps.
        between: function that changes the state after each chunk, the last one included (TPTT
            eq. 24).

    Returns:
        o, and the state after the last token (None if `state` is None).
    """
    simple = between is None and beta.shape[-1] == 1 and q.shape[1] == k.shape[1]
    if simple and fused.suits(q, v, decay):
        return fused.delta(q, k, v, beta, decay, state)
    if simple and k.shape[3] == 1 and state is None and recurrence.serves(q, v, rule=True):
        g = v.new_zeros(v.shape[:3]) if decay is None else decay
        given = q, k[:, :, :, 0], v[:, :, :, 0], g, beta[..., 0, 0]
        return recurrence.chunkwise(*given, rule=True, half=True), None
    return _chunked(q, k, v, beta, decay, state, chunk, between)


def _chunked(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, decay: Tensor | None, state: State | None,
    chunk: int | None, between: Between | None,
) -> tuple[Tensor, State | None]:  # fmt: skip
    """`chunkwise` in torch."""
    tokens = q.shape[2]
    dtype = wide(q, v)
    shape = (k.shape[0], k.shape[1], k.shape[-1], v.shape[-1])
    size = min(chunk or max(1, STEPS // k.shape[3]), tokens)
    with autocast_off(q):
        split = "b g (c i) r x -> (c b g) (i r) x"
        q = rearrange(q, "b (g r) t k -> b g t r k", g=shape[1])
        steps, reads = k.shape[3], q.shape[3]
        q, k, v, beta = (_chunks(x.to(dtype), size, split) for x in (q, k, v, beta))
        u, w, ends = v * beta, k * beta, k
        a, p = w @ k.mT, q @ k.mT
        keep = q.new_ones(len(q))
        if decay is None:
            inside = q.new_ones(size, size).tril()
        else:
            each = _chunks(decay.to(dtype), size, "b g (c i) -> (c b g) i")
            total = each.cumsum(-1)
            apart = differences(each, total)
            upper = torch.ones(size, size, dtype=torch.bool, device=q.device).triu(1)
            inside = apart.masked_fill(upper, float("-inf")).exp()
            start, last = total.exp()[..., None], total[:, -1]
            a, keep = a * _spread(inside, steps, steps), last.exp()
            w, q = w * _spread(start, steps), q * _spread(start, reads)
            rest = torch.where(last[:, None] < -LONG, apart[:, -1], last[:, None] - total)
            ends = k * _spread(rest.exp()[..., None], steps)
        p = p.mul_(_spread(inside, reads, steps))
        h = q.new_zeros(shape) if state is None else state.to(dtype)
        parts = (a, p, u, w, q, ends, keep)
        if between is None:
            o, h = Chunks.apply(*parts, h.flatten(0, 1))
            h = h.view(shape)
        else:
            outputs, by_chunk = [], (x.split(shape[0] * shape[1]) for x in parts)
            for c, part in enumerate(zip(*by_chunk, strict=True)):
                o, h = Chunks.apply(*part, h.flatten(0, 1))
                h = between(h.view(shape), c)
                outputs.append(o)
            o = torch.cat(outputs)
        join = "(c b g) (i r) v -> b (g r) (c i) v"
        o = rearrange(o, join, b=shape[0], g=shape[1], r=reads)
        state = None if state is None else h
    return o[:, :, :tokens], state


def step(
    q: Float[Tensor, "b h 1 k"],
    k: Float[Tensor, "b g 1 n k"],
    v: Float[Tensor, "b g 1 n v"],
    beta: Float[Tensor, "b g 1 n #k"],
    decay: Float[Tensor, "b g 1"] | None,
    state: State,
) -> tuple[Float[Tensor, "b h 1 v"], State]:
    """One token of the recurrence. Arguments and result as for `chunkwise`."""
    dtype = wide(q, v)
    with autocast_off(q):
        h = state.to(dtype)
        q, k, v, beta = (x.to(dtype) for x in (q, k, v, beta))
        if decay is not None:
            h = h * decay.to(dtype).exp()[..., None]
        for j in range(k.shape[3]):
            key, size = k[:, :, :, j], beta[:, :, :, j]
            h = h + key.mT @ (size * v[:, :, :, j] - (size * key) @ h)
        queries = rearrange(q, "b (g r) 1 k -> b g r k", g=h.shape[1])
        return rearrange(queries @ h, "b g r v -> b (g r) 1 v"), h


def masked(
    beta: Float[Tensor, "b g t n #k"],
    decay: Float[Tensor, "b g t"] | None,
    mask: Bool[Tensor, "b t"] | None,
) -> tuple[Tensor, Tensor | None]:
    """Set β and log-decay of padded tokens (mask False) to 0: no step, no decay."""
    if mask is None:
        return beta, decay
    beta = beta.masked_fill(~mask[:, None, :, None, None], 0)
    return beta, None if decay is None else decay.masked_fill(~mask[:, None], 0)


def unit(x: Float[Tensor, "*n k"]) -> Float[Tensor, "*n k"]:
    """x / ‖x‖ over the last axis, in float32 or wider."""
    return F.normalize(widen(x), dim=-1, eps=1e-6)


class Chunks(torch.autograd.Function):
    """Outputs [x i v] of c chunks in m sequences, x = c·m, and the last states [m k v].

    Args:
        a [x s s]: T = I + tril(a, −1) for s steps; other entries are ignored.
        p [x i s]: weights with which queries i read the steps of their chunk.
        u [x s v], w [x s k]: gated values, and gated keys that read the state before the chunk.
        q [x i k], k [x s k]: queries of the state before the chunk, keys that write the next state.
        keep [x] or [x k]: decay of the state over the chunk, one number or one per channel.
        first [m k v]: states before the first chunk.
        extra [x k v]: added to the state after the chunk; None for nothing.

    With y = T⁻¹(u − w h):  o = q h + p y,  h' = keep h + kᵀy = M h + (T⁻ᵀk)ᵀu, plus `extra`. The
    backward pass is written by hand: the loop over chunks then has one small product, forward and
    backward; autograd would need a third more products. Both share one explicit T⁻¹. The explicit
    inverse is stable: its entries are products of steps, which do not grow if ‖k‖ ≤ 1.
    """

    @staticmethod
    def forward(ctx: Any, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        a, p, u, w, q, k, keep, first, *extra = inputs
        eye = torch.eye(a.shape[-1], dtype=a.dtype, device=a.device).expand_as(a)
        inverse = torch.linalg.solve_triangular(a, eye, upper=False, unitriangular=True)
        k = inverse.mT @ k
        eye = torch.eye(k.shape[-1], dtype=a.dtype, device=a.device)
        move = eye * keep.view(len(keep), 1, -1)
        move = move.baddbmm_(k.mT, w, alpha=-1)
        added = k.mT @ u
        if extra:
            added = added + extra[0]
        ctx.channels = keep.ndim == 2
        ctx.extra = bool(extra)
        h = [first]
        for m, s in zip(move.split(len(first)), added.split(len(first)), strict=True):
            h.append(torch.baddbmm(s, m, h[-1]))
        before = torch.cat(h[:-1])
        y = inverse @ torch.baddbmm(u, w, before, alpha=-1)
        ctx.save_for_backward(inverse, p, w, q, k, move, before, y)
        return (q @ before).baddbmm_(p, y), h[-1]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, do: Tensor, dlast: Tensor) -> tuple[Tensor | None, ...]:
        # Autocast must be off: a backward pass started under autocast runs under autocast.
        with autocast_off(do):
            inverse, p, w, q, k, move, before, y = ctx.saved_tensors
            dy = inverse.mT @ (p.mT @ do)
            added = (q.mT @ do).baddbmm_(w.mT, dy, alpha=-1)
            d = [dlast]
            steps = zip(move.split(len(dlast)), added.split(len(dlast)), strict=True)
            for m, s in reversed(list(steps)):
                d.append(torch.baddbmm(s, m.mT, d[-1]))
            after = torch.cat(d[-2::-1])
            dy.baddbmm_(k, after)
            da = _minus(dy, y.mT).tril_(-1)
            dkeep = None
            if ctx.needs_input_grad[6]:
                dkeep = (after * before).sum(2 if ctx.channels else (1, 2))
            dw, dq, dk = _minus(dy, before.mT), do @ before.mT, y @ after.mT
            return da, do @ y.mT, dy, dw, dq, dk, dkeep, d[-1], *[after] * ctx.extra


def _minus(x: Tensor, y: Tensor) -> Tensor:
    """−x y by one call."""
    return torch.baddbmm(x.new_zeros(()), x, y, beta=0, alpha=-1)


def _chunks(x: Tensor, size: int, pattern: str) -> Tensor:
    """Split x into chunks of `size` tokens; zeros, steps of size 0, fill the last chunk."""
    missing = -x.shape[2] % size
    if missing:
        x = F.pad(x, (0, 0) * (x.ndim - 3) + (0, missing))
    return rearrange(x, pattern, i=size).contiguous()


def _spread(x: Tensor, rows: int, columns: int = 1) -> Tensor:
    """Repeat values of tokens, [… i m], for the steps or reads of each token."""
    x = x if rows == 1 else x.repeat_interleave(rows, -2)
    return x if columns == 1 else x.repeat_interleave(columns, -1)
