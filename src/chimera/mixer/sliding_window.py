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

from typing import Literal

from torch import Tensor

from chimera.contract import Ctx, Out, Parts, PositiveInt, Site
from chimera.mixer.shared.softmax import SoftmaxMixer
from chimera.ops import local
from chimera.ops.attention import KVCache

#: Queries in a block: fewer compute less outside the band, more copy keys less often.
BLOCK = 64


class SlidingWindow(SoftmaxMixer):
    """Banded attention; its cache holds the last w − 1 tokens.

    Args:
        window: w, see above.
        form: `banded`, or the paper's `dense` mask.
        heads: query heads h; None takes the model's.
        kv_heads: key-value heads g, a divisor of h; None means h.
        bias: biases on the four projections (a quantiser without biases ignores it).
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
        form: Literal["banded", "dense"] = "banded",
        heads: PositiveInt | None = None,
        kv_heads: PositiveInt | None = None,
        bias: bool = False,
    ) -> None:
        super().__init__(site, parts, heads=heads, kv_heads=kv_heads, bias=bias)
        self.window = window
        self.block = min(BLOCK, window) if form == "banded" else None

    def init_state(self, batch: int) -> KVCache:
        return self.cache(batch, slots=self.window - 1)

    def near(self, pos_q: Tensor, pos_k: Tensor) -> Tensor:
        """True where the query may look at the key."""
        apart = pos_q - pos_k
        if self.causal:
            return (apart >= 0) & (apart < self.window)
        return apart.abs() < self.window

    def forward(self, x: Tensor, ctx: Ctx, state: KVCache | None = None) -> Out:
        tokens = local.Aligned.of(ctx)
        y, state = self.nearby(
            *self.project(tokens.take(x)),
            tokens,
            state,
            block=self.block,
            reach=self.window - 1,
            rule=self.near,
        )
        return Out(self.output(y, tokens), state)
