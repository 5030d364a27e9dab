"""Titan attention of TITAN's Table 2 (SPEC M10; TITAN 4.5, eq. 31-33).

    y = W_o (softmax(Q Kᵀ / √k + bias) V  [+ r]),      r the read of a fast-weight memory, eq. 31-32

with `kv_heads` = h/4 key-value heads (TITAN: 16 query heads, 4 groups). TITAN rotates and projects
queries and keys by HOPE; here, `position=hope` selects it, and other position encodings work too.
`memory` adds the read of M9 (`chimera.mixer.shared.memory`, with its own projections) to the output
of attention before W_o, for context outside the softmax. [b t d] to [b t d].
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from jaxtyping import Float
from torch import Tensor

from chimera.contract import Context, Out, Parts, PositiveInt, Site
from chimera.mixer.shared.memory import FastWeightMemory, OpenFraction
from chimera.mixer.shared.softmax import SoftmaxMixer
from chimera.ops.attention import KVCache


class TitanState(NamedTuple):
    """Cache of attention, and the memory ([0 h k v] without memory)."""

    cache: KVCache
    memory: Float[Tensor, "b h k v"]


class TitanAttention(SoftmaxMixer):
    """Grouped-query softmax attention, with an optional fast-weight memory.

    Args:
        heads: query heads h, also the number of memories; None for the model's number.
        kv_heads: key-value heads g, a divisor of h; `quarter` for h/4.
        bias: biases in the four projections (ignored by quantisers without biases).
        memory: add the read of a fast-weight memory.
        alpha: initial factor of decay per token of the memory, learned per head.
        chunk_size: tokens per chunk of the memory's chunkwise form.
    """

    documents = True
    source = "M10; TITAN 4.5, eq. 31-33"
    state_size = "2·t·g·k (the cache grows), + d·k with memory"

    def __init__(
        self,
        site: Site,
        parts: Parts,
        *,
        heads: PositiveInt | None = None,
        kv_heads: PositiveInt | Literal["quarter"] = "quarter",
        bias: bool = False,
        memory: bool = False,
        alpha: OpenFraction = 0.9,
        chunk_size: PositiveInt = 64,
    ) -> None:
        super().__init__(site, parts, heads=heads, kv_heads=kv_heads, bias=bias)
        self.memory = None
        if memory:
            self.memory = FastWeightMemory(
                site.dim,
                site.dim,
                parts.linear,
                heads=self.heads.h,
                alpha=alpha,
                chunk=chunk_size,
                causal=site.causal,
            )

    def init_state(self, batch: int) -> TitanState:
        cache = self.cache(batch)
        if self.memory is None:
            empty = cache.k.new_zeros(0, self.heads.h, self.head_dim, self.head_dim)
            return TitanState(cache, empty)
        return TitanState(cache, self.memory.init_state(batch))

    def forward(self, x: Tensor, ctx: Context, state: TitanState | None = None) -> Out:
        cache, memory = state or (None, None)
        y, cache = self.full_attention(*self.project(x), ctx.pos, ctx.mask, cache, ctx)
        if self.memory is not None:
            r, memory = self.memory(x, ctx.mask, memory)
            y = (y + self.heads.split(r, self.heads.h)).to(x.dtype)
        new_state = None if cache is None or memory is None else TitanState(cache, memory)
        return Out(self.output(y), new_state)
