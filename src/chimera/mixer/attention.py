"""Softmax attention, multi-head, grouped-query and multi-query (SPEC M1, M2).

    O = softmax(Q Kᵀ / √k + bias) V W_o                              (SAIDL 2.2, TITAN 4.5, eq. 33)

With `kv_heads` = g < h, h/g query heads share one key-value head (GQA, arXiv 2305.13245; TITAN:
16 heads, 4 groups; g = 1 is multi-query, SAIDL 2.5) and the cache really holds g heads.
Both directions are its own: causal by mask, bidirectional by none.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from einops import rearrange
from torch import Tensor

from chimera.contract import Ctx, Hook, Mixer, Out, Parts, PositiveInt, Site
from chimera.ops.attention import Heads, KVCache, attend


class Attention(Mixer):
    """Softmax attention.

    Args:
        heads: query heads h; None takes the model's.
        kv_heads: key-value heads g, a divisor of h; None means h, `quarter` h/4.
        bias: biases on the four projections (a quantiser without biases ignores it).
    """

    component = "attention"
    honours: ClassVar[frozenset[Hook]] = frozenset({"embed", "rotate", "bias"})
    forms = ("parallel", "recurrent")
    source = "M1, M2; arXiv 1706.03762, 2305.13245"
    cost = "t²·d"
    state_size = "2·t·g·k (the cache grows)"

    def __init__(
        self,
        site: Site,
        parts: Parts,
        *,
        heads: PositiveInt | None = None,
        kv_heads: PositiveInt | Literal["quarter"] | None = None,
        bias: bool = False,
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

    def init_state(self, batch: int) -> KVCache:
        like = self.q_proj.weight
        return KVCache.empty(batch, self.heads.g, self.head_dim, self.head_dim, like)

    def forward(self, x: Tensor, ctx: Ctx, state: KVCache | None = None) -> Out:
        q = self.heads.split(self.q_proj(x), self.heads.h)
        k = self.heads.split(self.k_proj(x), self.heads.g)
        v = self.heads.split(self.v_proj(x), self.heads.g)
        q, k = self.position.rotate(q, k, ctx.pos)
        pos, mask = ctx.pos, ctx.mask
        if state is not None:
            state = state.extend(k, v, ctx.pos, ctx.mask)
            k, v, pos, mask = state
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
        return Out(self.o_proj(rearrange(y, "b h t k -> b t (h k)")), state)
