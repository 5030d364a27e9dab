"""Forgetting attention: softmax attention with a forget gate (FoX, arXiv 2503.02130).

    o_i = Σ_{j≤i} softmax_j(q_i·k_j/√k + D_ij) v_j,   D_ij = Σ_{j<l≤i} log f_l      (section 3)
    f_t = σ(w_f x_t + b_f) per query head,   y = W_o o

D is a learned, data-dependent ALiBi: with f = 1 this is attention, and a constant f is ALiBi. It
needs no other positions (the paper's default); those that rotate or add a bias work too.

This is the paper's FoX in LLaMA's block; its «Pro» block adds an output gate, norms of q, k and o
and a shift of keys and values, each of which it measures apart. b_f starts at 0 as there. The state
has a running sum of log f for each cached token and head, in float32 or wider: it is subtracted,
and half precision would lose small gates behind large sums. D is materialised, [b h t t].
"""

from __future__ import annotations

from typing import ClassVar, Literal, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from chimera.contract import CAUSAL, Context, Direction, Out, Parts, PositiveInt, Site
from chimera.mixer.shared.softmax import SoftmaxMixer
from chimera.ops.attention import KVCache, attend
from chimera.ops.precision import wide, widen


class ForgettingState(NamedTuple):
    """Cache of attention, and the sum of log f up to each of its tokens."""

    cache: KVCache
    total: Float[Tensor, "b h s"]


class Forgetting(SoftmaxMixer):
    """Softmax attention whose scores fall by a learned forget gate per token (FoX).

    Args:
        heads: query heads h; None for the model's number.
        kv_heads: key-value heads g, a divisor of h; None for h, `quarter` for h/4.
        bias: biases in the four projections (ignored by quantisers without biases).
    """

    undecayed = ("gate_bias",)
    directions: ClassVar[frozenset[Direction]] = CAUSAL
    documents = True
    source = "arXiv 2503.02130"
    state_size = "2·t·g·k + t·h (the cache grows)"

    def __init__(
        self,
        site: Site,
        parts: Parts,
        *,
        heads: PositiveInt | None = None,
        kv_heads: PositiveInt | Literal["quarter"] | None = None,
        bias: bool = False,
    ) -> None:
        super().__init__(site, parts, heads=heads, kv_heads=kv_heads, bias=bias)
        self.gate_proj = parts.linear(site.dim, self.heads.h, bias=False, role="gate")
        self.gate_bias = nn.Parameter(torch.zeros(self.heads.h))

    def init_state(self, batch: int) -> ForgettingState:
        cache = self.cache(batch)
        total = cache.k.new_zeros(batch, self.heads.h, 0, dtype=wide(cache.k))
        return ForgettingState(cache, total)

    def forward(self, x: Tensor, ctx: Context, state: ForgettingState | None = None) -> Out:
        q, k, v = self.project(x)
        q, k = self.position.rotate(q, k, ctx.pos)
        gates = F.logsigmoid(widen(self.gate_proj(x)) + widen(self.gate_bias))
        if ctx.mask is not None:
            gates = gates.masked_fill(~ctx.mask[..., None], 0)
        total = here = gates.mT.cumsum(-1)
        pos_k, mask, visible = ctx.pos, ctx.mask, None
        if state is not None:
            cache, past = state.cache.extend(k, v, ctx.pos, mask), state.total
            here = here + past[..., -1:] if past.shape[-1] else here
            total = torch.cat([past, here], -1)
            state = ForgettingState(cache, total)
            k, v, pos_k, mask = cache
            mask = None if cache.unpadded else mask
        elif mask is not None or ctx.documents is not None:
            visible = ctx.cached(f"allowed {self.causal}", lambda: self._visible(ctx))
        decay = here[..., :, None] - total[..., None, :]
        bias = self.position.bias(ctx.pos, pos_k)
        y = attend(
            q,
            k,
            v,
            mask=mask,
            bias=decay if bias is None else decay + bias,
            causal=self.causal,
            dropout=self._dropout(),
            visible=visible,
        )
        return Out(self.output(y), state)
