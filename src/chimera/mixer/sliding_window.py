"""Softmax attention within a window of w tokens (SPEC M3; SAIDL 2.5; arXiv 2004.05150).

    O_i = softmax_{j ∈ N(i)}(q_i·k_j/√k + bias_ij) v_j
    decoder: N(i) = {j: 0 ≤ i − j < w}   w tokens, with the current token
    encoder: N(i) = {j: |i − j| < w}     w − 1 tokens on either side and the current token

Distances count real tokens. `banded` computes scores of blocks of queries with neighbouring blocks
of keys only, O(t·w) time and memory. `dense` computes the same numbers as SAIDL does, by masking
t × t scores: an ablation of local connectivity, without savings. `scores` does so without torch's
fused kernel, which holds the mask but no scores. q [b h t k], k and v [b g t k].
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from chimera.contract import Context, Out, Parts, PositiveInt, Site
from chimera.mixer.shared.softmax import SoftmaxMixer
from chimera.ops import local
from chimera.ops.attention import KVCache

#: Queries in a block: small blocks compute fewer scores outside the band, large ones copy less.
BLOCK = 64


class SlidingWindow(SoftmaxMixer):
    """Softmax attention within a window of w tokens; the cache has the last w − 1 tokens.

    Args:
        window: w, tokens in the window.
        form: `banded`, or `dense` for the paper's mask, or `scores` for its memory, too.
        heads: query heads h; None for the model's number.
        kv_heads: key-value heads g, a divisor of h; None for h.
        bias: biases in the four projections (ignored by quantisers without biases).
    """

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
        form: Literal["banded", "dense", "scores"] = "banded",
        heads: PositiveInt | None = None,
        kv_heads: PositiveInt | None = None,
        bias: bool = False,
    ) -> None:
        super().__init__(site, parts, heads=heads, kv_heads=kv_heads, bias=bias)
        self.window = window
        self.dense = form == "scores"
        self.block = min(BLOCK, window) if form == "banded" else None

    def init_state(self, batch: int) -> KVCache:
        return self.cache(batch, slots=self.window - 1)

    def visible(self, pos_q: Tensor, pos_k: Tensor) -> Tensor:
        """True where the query may attend to the key."""
        distance = pos_q - pos_k
        if self.causal:
            return (distance >= 0) & (distance < self.window)
        return distance.abs() < self.window

    def forward(self, x: Tensor, ctx: Context, state: KVCache | None = None) -> Out:
        tokens = local.Aligned.of(ctx)
        y, state = self.local_attention(
            *self.project(tokens.take(x)),
            tokens,
            state,
            block=self.block,
            reach=self.window - 1,
            rule=self.visible,
        )
        return Out(self.output(y, tokens), state)
