"""What TITAN's Table 2 calls Titan attention (SPEC M10; TITAN 4.5, eq. 31-33).

    y = W_o (softmax(Q Kᵀ / √k + bias) V  [+ r]),      r the read of a fast-weight memory, eq. 31-32

with `kv_heads` = h/4 key-value heads (TITAN: 16 query heads, 4 groups). TITAN
turns and projects queries and keys by HOPE; here that is the model's choice, `position=hope`, as
are the others. `memory` adds the read of M9 (`chimera.ops.memory`, its own projections) to the
attention's output, ahead of W_o: context from beyond what the softmax attends to. [b t d] to
[b t d].
"""

from __future__ import annotations

from typing import ClassVar, Literal, NamedTuple

from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from chimera.contract import Ctx, Hook, Mixer, Out, Parts, PositiveInt, Site
from chimera.ops.attention import Heads, KVCache, attend
from chimera.ops.memory import FastWeightMemory, OpenFraction


class TitanState(NamedTuple):
    """The cache of the attention, and the memory (of no sequences where there is none)."""

    cache: KVCache
    memory: Float[Tensor, "b h k v"]


class TitanAttention(Mixer):
    """Grouped-query softmax attention, with a fast-weight memory beside it by option.

    Args:
        heads: query heads h, also memories; None takes the model's.
        kv_heads: key-value heads g, a divisor of h; `quarter` is h/4.
        bias: biases on the four projections (a quantiser without biases ignores it).
        memory: read a fast-weight memory as well.
        alpha: what the memory keeps per token, at the start; learned per head.
        chunk_size: tokens per chunk of the memory's chunkwise form.
    """

    component = "attention"
    honours: ClassVar[frozenset[Hook]] = frozenset({"embed", "rotate", "bias"})
    forms = ("parallel", "recurrent")
    source = "M10; TITAN 4.5, eq. 31-33"
    cost = "t²·d"
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
        super().__init__()
        h = heads or site.heads
        if site.dim % h:
            raise ValueError(f"heads={h} does not divide the model width {site.dim}")
        self.heads = Heads.of(h, kv_heads)
        self.causal, self.dropout = site.causal, site.dropout
        k = self.head_dim = site.dim // h
        self.q_proj = parts.linear(site.dim, h * k, bias=bias, role="qkv")
        self.k_proj = parts.linear(site.dim, self.heads.g * k, bias=bias, role="qkv")
        self.v_proj = parts.linear(site.dim, self.heads.g * k, bias=bias, role="qkv")
        self.o_proj = parts.linear(h * k, site.dim, bias=bias, role="out")
        self.position = parts.position(site, h, k)
        self.memory = None
        if memory:
            self.memory = FastWeightMemory(
                site.dim,
                site.dim,
                parts.linear,
                heads=h,
                alpha=alpha,
                chunk=chunk_size,
                causal=site.causal,
            )

    def init_state(self, batch: int) -> TitanState:
        like, k = self.q_proj.weight, self.head_dim
        cache = KVCache.empty(batch, self.heads.g, k, k, like)
        if self.memory is None:
            return TitanState(cache, like.new_zeros(0, self.heads.h, k, k))
        return TitanState(cache, self.memory.init_state(batch))

    def forward(self, x: Tensor, ctx: Ctx, state: TitanState | None = None) -> Out:
        y, cache = self._attend(x, ctx, None if state is None else state.cache)
        memory = None if state is None else state.memory
        if self.memory is not None:
            r, memory = self.memory(x, ctx.mask, memory)
            y = y + r
        kept = None if cache is None or memory is None else TitanState(cache, memory)
        return Out(self.o_proj(y), kept)

    def _attend(
        self, x: Tensor, ctx: Ctx, cache: KVCache | None
    ) -> tuple[Float[Tensor, "b t d"], KVCache | None]:
        q = self.heads.split(self.q_proj(x), self.heads.h)
        k = self.heads.split(self.k_proj(x), self.heads.g)
        v = self.heads.split(self.v_proj(x), self.heads.g)
        q, k = self.position.rotate(q, k, ctx.pos)
        pos, mask = ctx.pos, ctx.mask
        if cache is not None:
            cache = cache.extend(k, v, ctx.pos, ctx.mask)
            k, v, pos, mask = cache
            if bool(mask.all()):
                mask = None
        y = attend(
            q,
            k,
            v,
            mask=mask,
            bias=self.position.bias(ctx.pos, pos),
            causal=self.causal,
            dropout=self.dropout if self.training else 0.0,
        )
        return rearrange(y, "b h t k -> b t (h k)"), cache
