"""Softmax attention within disjoint blocks of B tokens (SPEC M4; SAIDL 2.5).

    O_i = softmax_{j ∈ N(i)}(q_i·k_j/√k + bias_ij) v_j
    decoder: N(i) = {j ≤ i: ⌊j/B⌋ = ⌊i/B⌋}
    encoder: N(i) = {j: ⌊j/B⌋ = ⌊i/B⌋}

Blocks count real tokens; padding does not move their borders. Blocks exchange no information within
a layer. O(t·B) time and memory. q [b h t k], k and v [b g t k].
"""

from __future__ import annotations

from torch import Tensor

from chimera.contract import Context, Out, Parts, PositiveInt, Site
from chimera.mixer.shared.softmax import SoftmaxMixer
from chimera.ops import local
from chimera.ops.attention import KVCache


class SparseBlock(SoftmaxMixer):
    """Softmax attention within blocks of B tokens; the cache has the last B − 1 tokens.

    Args:
        block: B, tokens in a block.
        heads: query heads h; None for the model's number.
        kv_heads: key-value heads g, a divisor of h; None for h.
        bias: biases in the four projections (ignored by quantisers without biases).
    """

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
        super().__init__(site, parts, heads=heads, kv_heads=kv_heads, bias=bias)
        self.block = block

    def init_state(self, batch: int) -> KVCache:
        return self.cache(batch, slots=self.block - 1)

    def visible(self, pos_q: Tensor, pos_k: Tensor) -> Tensor:
        """True where the query may attend to the key."""
        same = pos_q // self.block == pos_k // self.block
        return same & (pos_k <= pos_q) if self.causal else same

    def forward(self, x: Tensor, ctx: Context, state: KVCache | None = None) -> Out:
        tokens = local.Aligned.of(ctx)
        y, cache = self.local_attention(
            *self.project(tokens.take(x)),
            tokens,
            state,
            block=self.block,
            # With a state, blocks of this call's tokens are not aligned to blocks of the sequence.
            reach=0 if state is None else self.block - 1,
            rule=self.visible,
        )
        return Out(self.output(y, tokens), cache)
