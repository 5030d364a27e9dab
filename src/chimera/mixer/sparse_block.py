"""Softmax attention within blocks of B tokens that do not overlap (SPEC M4; SAIDL 2.5).

    O_i = softmax_{j ∈ N(i)}(q_i·k_j/√k + bias_ij) v_j
    decoder: N(i) = {j ≤ i: ⌊j/B⌋ = ⌊i/B⌋}
    encoder: N(i) = {j: ⌊j/B⌋ = ⌊i/B⌋}

Blocks count real tokens, so padding moves no border. No path leads from one block to another
within a layer. O(t·B) time and memory. q [b h t k], k and v [b g t k].
"""

from __future__ import annotations

from typing import ClassVar

from einops import rearrange
from torch import Tensor

from chimera.contract import Ctx, Hook, Mixer, Out, Parts, PositiveInt, Site
from chimera.ops import local
from chimera.ops.attention import Heads, KVCache


class SparseBlock(Mixer):
    """Block-diagonal attention; its cache holds the last B − 1 tokens, the current block in them.

    Args:
        block: B, see above.
        heads: query heads h; None takes the model's.
        kv_heads: key-value heads g, a divisor of h; None means h.
        bias: biases on the four projections (a quantiser without biases ignores it).
    """

    component = "attention"
    honours: ClassVar[frozenset[Hook]] = frozenset({"embed", "rotate", "bias"})
    forms = ("parallel", "chunkwise", "recurrent")
    source = "M4; SAIDL 2.5"
    cost = "t·B·d"
    state_size = "2·(B−1)·g·k"

    def __init__(
        self,
        site: Site,
        parts: Parts,
        *,
        block: PositiveInt = 64,
        heads: PositiveInt | None = None,
        kv_heads: PositiveInt | None = None,
        bias: bool = False,
    ) -> None:
        super().__init__()
        h = heads or site.heads
        if site.dim % h:
            raise ValueError(f"heads={h} does not divide the model width {site.dim}")
        self.heads = Heads(h, kv_heads or h)
        self.block, self.causal, self.dropout = block, site.causal, site.dropout
        k = self.head_dim = site.dim // h
        self.q_proj = parts.linear(site.dim, h * k, bias=bias, role="qkv")
        self.k_proj = parts.linear(site.dim, self.heads.g * k, bias=bias, role="qkv")
        self.v_proj = parts.linear(site.dim, self.heads.g * k, bias=bias, role="qkv")
        self.o_proj = parts.linear(h * k, site.dim, bias=bias, role="out")
        self.position = parts.position(site, h, k)

    def init_state(self, batch: int) -> KVCache:
        slots = self.block - 1
        return local.fresh(batch, self.heads.g, slots, self.head_dim, self.q_proj.weight)

    def together(self, pos_q: Tensor, pos_k: Tensor) -> Tensor:
        """True where the query may look at the key."""
        same = pos_q // self.block == pos_k // self.block
        return same & (pos_k <= pos_q) if self.causal else same

    def forward(self, x: Tensor, ctx: Ctx, state: KVCache | None = None) -> Out:
        tokens = local.Aligned.of(ctx)
        x = tokens.take(x)
        q = self.heads.split(self.q_proj(x), self.heads.h)
        k = self.heads.split(self.k_proj(x), self.heads.g)
        v = self.heads.split(self.v_proj(x), self.heads.g)
        q, k = self.position.rotate(q, k, tokens.pos)
        keys, cache = local.extend(k, v, tokens, state)
        y = local.attend(
            q,
            keys,
            tokens.pos,
            block=self.block,
            # After a state, a block of this call's tokens is not a block of the sequence's.
            reach=0 if state is None else self.block - 1,
            causal=self.causal,
            rule=self.together,
            bias=self.position.bias,
            dropout=self.dropout if self.training else 0.0,
        )
        y = tokens.restore(rearrange(y, "b h t k -> b t (h k)"))
        return Out(self.o_proj(y), cache)
