"""mLSTM cell: matrix memory, exponential input gate, stabiliser (SPEC M13; arXiv 2405.04517).

    C_t = f_t C_{t−1} + i_t k_t v_tᵀ,   n_t = f_t n_{t−1} + i_t k_t     f = σ(f̃), i = exp(ĩ)
    h_t = C_tᵀ q_t / max(|n_t·q_t|, 1)                    (eq. 19–27; the caller has scaled k)

The state is C e^{−m} and n e^{−m} with m_t = max(log f_t + m_{t−1}, ĩ_t, 0). The scaled memory is
a decayed linear recurrence, computed by `ops.decay`:

    C_t ← exp(g_t) C_{t−1} + k_t e^{ĩ_t − m_t} v_tᵀ,   g_t = log f_t + m_{t−1} − m_t ≤ 0

n is the column of C for a value that is always 1. h does not depend on m, so m has no gradient.
The lower bound 0 of m is not in the paper. It keeps e^{−m} from overflowing and does not change h:
the denominator is at least 1, so values that underflow contribute nothing.
Shapes: q, k [b h t k]; v [b h t v]; gates [b h t]. Computes in float32 or wider, also under
autocast.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from chimera.ops import decay
from chimera.ops.precision import wide


class Memory(NamedTuple):
    """State of the cell: c = (C, n) e^{−m}, concatenated along the last axis, and m."""

    c: Float[Tensor, "b h k v+1"]
    m: Float[Tensor, "b h"]

    @staticmethod
    def empty(batch: int, heads: int, k: int, v: int, like: Tensor) -> Memory:
        """Zero state, on the device of `like`, in the dtype of `like`, at least float32."""
        c = like.new_zeros(batch, heads, k, v + 1, dtype=wide(like))
        return Memory(c, c.new_zeros(batch, heads))


def stabiliser(
    log_i: Float[Tensor, "b h t"], log_f: Float[Tensor, "b h t"], m: Float[Tensor, "b h"]
) -> Float[Tensor, "b h t"]:
    """m_t of every token, by a cumulative maximum instead of the recurrence."""
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
    """Compute all tokens in chunks; a single token with a state is one step of the recurrence.

    Args:
        q, k, v: queries, keys, values.
        i, f: pre-activations ĩ, f̃ of the gates.
        memory: state before the first token. None: zeros, and no state is returned.
        mask: True for real tokens; padding does not change the state.
        chunk: tokens in a chunk; chunk ≥ t is the parallel form, cost t².

    Returns:
        h in float32 or wider, and the memory after the last token.
    """
    dtype = wide(v, i)
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
    # e^{−m} may underflow to 0; the clamp makes an empty memory return 0, not 0/0.
    least = (-m).exp().clamp(min=torch.finfo(dtype).tiny)[..., None]
    h = y[..., :-1] / torch.maximum(y[..., -1:].abs(), least)
    return h, None if c is None else Memory(c, m[..., -1])
