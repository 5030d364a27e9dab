"""The mLSTM cell: matrix memory, exponential input gate, stabiliser (SPEC M13; arXiv 2405.04517).

    C_t = f_t C_{t−1} + i_t k_t v_tᵀ,   n_t = f_t n_{t−1} + i_t k_t     f = σ(f̃), i = exp(ĩ)
    h_t = C_tᵀ q_t / max(|n_t·q_t|, 1)                                  (eq. 19–27; k comes scaled)

With m_t = max(log f_t + m_{t−1}, ĩ_t, 0) the memory kept is C e^{−m}, n e^{−m}. It obeys

    C_t ← exp(g_t) C_{t−1} + k_t e^{ĩ_t − m_t} v_tᵀ,   g_t = log f_t + m_{t−1} − m_t ≤ 0,

a decayed linear recurrence, so the forms of `ops.decay` are those of this cell; n is C's column for
a value that is always 1. h does not depend on m, so no gradient passes through it. The floor 0,
which the paper does not have, keeps e^{−m} from overflowing and takes nothing away: the denominator
is never below 1, so what underflows would not be seen.
q, k [b h t k]; v [b h t v]; gates [b h t]. All in float32 at least, under autocast too.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from chimera.ops import decay


class Memory(NamedTuple):
    """(C, n) e^{−m} side by side, and m."""

    c: Float[Tensor, "b h k v+1"]
    m: Float[Tensor, "b h"]

    @staticmethod
    def empty(batch: int, heads: int, k: int, v: int, like: Tensor) -> Memory:
        """The memory of nothing, on the device of `like`, in its dtype or float32."""
        wide = torch.promote_types(like.dtype, torch.float32)
        c = like.new_zeros(batch, heads, k, v + 1, dtype=wide)
        return Memory(c, c.new_zeros(batch, heads))


def stabiliser(
    log_i: Float[Tensor, "b h t"], log_f: Float[Tensor, "b h t"], m: Float[Tensor, "b h"]
) -> Float[Tensor, "b h t"]:
    """m_t of every token: the recurrence, unrolled into a running maximum."""
    total = log_f.cumsum(-1)
    best = torch.maximum((log_i - total).cummax(-1).values, m[..., None])
    return (total + best).clamp(min=0)


def mlstm(
    q: Float[Tensor, "b h t k"],
    k: Float[Tensor, "b h t k"],
    v: Float[Tensor, "b h t v"],
    i: Float[Tensor, "b h t"],
    f: Float[Tensor, "b h t"],
    memory: Memory | None = None,
    mask: Bool[Tensor, "b t"] | None = None,
    *,
    chunk: int = 64,
) -> tuple[Float[Tensor, "b h t v"], Memory | None]:
    """All tokens, in chunks; one token is one step of the recurrence.

    Args:
        q, k, v: queries, keys, values.
        i, f: pre-activations ĩ, f̃ of the gates.
        memory: what came before; None for nothing, and then none is computed.
        mask: True for real tokens; others leave the memory alone.
        chunk: tokens in a chunk; as many as there are is the parallel form, cost t².

    Returns:
        h in the dtype of v, and the memory after the last token.
    """
    dtype = torch.promote_types(torch.promote_types(v.dtype, i.dtype), torch.float32)
    log_i, log_f = i.to(dtype), F.logsigmoid(f.to(dtype))
    if mask is not None:
        log_i = log_i.masked_fill(~mask[:, None], float("-inf"))
        log_f = log_f.masked_fill(~mask[:, None], 0)
    with torch.no_grad():
        before = torch.zeros_like(log_i[..., 0]) if memory is None else memory.m.to(dtype)
        m = stabiliser(log_i, log_f, before)
        previous = torch.cat([before[..., None], m[..., :-1]], -1)
    g = log_f + (previous - m)
    k = k.to(dtype) * (log_i - m).exp()[..., None]
    v1 = F.pad(v.to(dtype), (0, 1), value=1)
    c = None if memory is None else memory.c
    if c is not None and q.shape[2] == 1:
        y, c = decay.step(q, k, v1, g, c)
    else:
        y, c = decay.chunkwise(q, k, v1, g, c, chunk=chunk)
    # e^{−m} may underflow; a memory of nothing then answers 0, not 0/0.
    least = (-m).exp().clamp(min=torch.finfo(dtype).tiny)[..., None]
    h = y[..., :-1] / torch.maximum(y[..., -1:].abs(), least)
    return h.to(v.dtype), None if c is None else Memory(c, m[..., -1])
