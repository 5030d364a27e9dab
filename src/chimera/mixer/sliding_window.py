"""Softmax attention within a window of w tokens (SPEC M3; SAIDL 2.5; arXiv 2004.05150).

    O_i = softmax_{j ∈ N(i)}(q_i·k_j/√k + bias_ij) v_j
    decoder: N(i) = {j: 0 ≤ i − j < w}   w tokens, its own among them
    encoder: N(i) = {j: |i − j| < w}     w − 1 on either side and its own

Distances count real tokens. `banded` is what the definition says: blocks of queries meet the
neighbouring blocks of keys only, O(t·w) time and memory. `dense` is SAIDL's: the same numbers by
masking the t × t scores, a local-connectivity ablation that saves nothing.
q [b h t k], k and v [b g t k].
"""

from __future__ import annotations

from typing import ClassVar, Literal

from einops import rearrange
from torch import Tensor

from chimera.contract import Ctx, Hook, Mixer, Out, Parts, PositiveInt, Site
from chimera.ops import local
from chimera.ops.attention import Heads, KVCache

#: Queries in a block: fewer compute less outside the band, more copy keys less often.
BLOCK = 64


class SlidingWindow(Mixer):
    """Banded attention; its cache holds the last w − 1 tokens.

    Args:
        window: w, see above.
        form: `banded`, or the paper's `dense` mask.
        heads: query heads h; None takes the model's.
        kv_heads: key-value heads g, a divisor of h; None means h.
        bias: biases on the four projections (a quantiser without biases ignores it).
    """

    component = "attention"
    honours: ClassVar[frozenset[Hook]] = frozenset({"embed", "rotate", "bias"})
    forms = ("parallel", "chunkwise", "recurrent")
    source = "M3; SAIDL 2.5; arXiv 2004.05150"
    cost = "t·w·d (dense: t²·d)"
    state_size = "2·(w−1)·g·k"

    def __init__(
        self,
        site: Site,
        parts: Parts,
        *,
        window: PositiveInt = 256,
        form: Literal["banded", "dense"] = "banded",
        heads: PositiveInt | None = None,
        kv_heads: PositiveInt | None = None,
        bias: bool = False,
    ) -> None:
        super().__init__()
        h = heads or site.heads
        if site.dim % h:
            raise ValueError(f"heads={h} does not divide the model width {site.dim}")
        self.heads = Heads(h, kv_heads or h)
        self.window, self.banded = window, form == "banded"
        self.causal, self.dropout = site.causal, site.dropout
        k = self.head_dim = site.dim // h
        self.q_proj = parts.linear(site.dim, h * k, bias=bias, role="qkv")
        self.k_proj = parts.linear(site.dim, self.heads.g * k, bias=bias, role="qkv")
        self.v_proj = parts.linear(site.dim, self.heads.g * k, bias=bias, role="qkv")
        self.o_proj = parts.linear(h * k, site.dim, bias=bias, role="out")
        self.position = parts.position(site, h, k)

    def init_state(self, batch: int) -> KVCache:
        slots = self.window - 1
        return local.fresh(batch, self.heads.g, slots, self.head_dim, self.q_proj.weight)

    def near(self, pos_q: Tensor, pos_k: Tensor) -> Tensor:
        """True where the query may look at the key."""
        apart = pos_q - pos_k
        if self.causal:
            return (apart >= 0) & (apart < self.window)
        return apart.abs() < self.window

    def forward(self, x: Tensor, ctx: Ctx, state: KVCache | None = None) -> Out:
        tokens = local.Aligned.of(ctx)
        x = tokens.take(x)
        q = self.heads.split(self.q_proj(x), self.heads.h)
        k = self.heads.split(self.k_proj(x), self.heads.g)
        v = self.heads.split(self.v_proj(x), self.heads.g)
        q, k = self.position.rotate(q, k, tokens.pos)
        keys, state = local.extend(k, v, tokens, state)
        y = local.attend(
            q,
            keys,
            tokens.pos,
            block=min(BLOCK, self.window) if self.banded else None,
            reach=self.window - 1,
            causal=self.causal,
            rule=self.near,
            bias=self.position.bias,
            dropout=self.dropout if self.training else 0.0,
        )
        y = tokens.restore(rearrange(y, "b h t k -> b t (h k)"))
        return Out(self.o_proj(y), state)
