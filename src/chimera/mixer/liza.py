"""LiZAttention: softmax attention and a delta-rule memory over the same q, k, v, o (SPEC M12).

    O_base = softmax(Q Kᵀ / √k + bias) V                                       (TPTT eq. 2)
    O_lin = the linear branch, `ops.liza`                                      (eq. 3-6, 16-24)
    O = (1−α) O_base + α O_lin                                                 additive, eq. 7
    O = (1−α) O_base + α O_lin + (1−α) O_base ⊙ α O_lin                        cross_gate, eq. 8

Positions turn and bias the softmax branch only: the two share q and k as they are before rotation.
α, `mag_weight`, is no parameter: it is set from outside (TPTT 4.2) and saved with the weights. At
α = 0 the mixer is plain attention, to the bit where nothing is padded. The encoder's linear branch
reads both ways. x [b t d]; q [b h t k]; k, v [b g t k]; y = W_o O.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from chimera.contract import Ctx, Fraction, Out, Parts, PositiveInt, Site
from chimera.mixer.shared.softmax import SoftmaxMixer
from chimera.ops import local
from chimera.ops.attention import KVCache
from chimera.ops.liza import Gate, LinearBranch, LinearState, Nonlinearity, Trick

#: Queries in a block of bounded attention.
BLOCK = 128


class LiZAState(NamedTuple):
    """What either branch keeps."""

    cache: KVCache
    linear: LinearState


class LiZAttention(SoftmaxMixer):
    """Softmax attention with a linear memory as gate. [b t d] to [b t d].

    Args:
        heads: query heads h; None takes the model's.
        kv_heads: key-value heads g, a divisor of h; None means h. A memory serves h/g heads.
        bias: biases on the four projections (a quantiser without biases ignores it).
        order: virtual tokens per token, n_h: delta-rule steps.
        trick: what virtual tokens are made by: differences in time, rotations, the mean of both.
        gate: what the step sizes β come from: keys, values, or the product of both.
        mag: how the branches are combined, see above.
        mag_weight: α to begin with.
        nonlinearity: applied to the memory between chunks (eq. 24).
        chunk: tokens of such a chunk; without nonlinearity of no effect.
        max_cache: tokens, its own among them, that the softmax branch sees; None for all before.
    """

    forms = ("parallel", "recurrent")
    source = "M12; TPTT 3.5 (LiZAttention)"
    cost = "t²·d + order·t·(k + 64)·d"
    state_size = "2·t·g·k + g·k·k (the cache grows, or is 2·max_cache·g·k)"

    def __init__(
        self,
        site: Site,
        parts: Parts,
        *,
        heads: PositiveInt | None = None,
        kv_heads: PositiveInt | None = None,
        bias: bool = False,
        order: PositiveInt = 2,
        trick: Trick = "derivative",
        gate: Gate = "k",
        mag: Literal["additive", "cross_gate"] = "additive",
        mag_weight: Fraction = 0.5,
        nonlinearity: Nonlinearity = "none",
        chunk: PositiveInt = 64,
        max_cache: PositiveInt | None = None,
    ) -> None:
        super().__init__(site, parts, heads=heads, kv_heads=kv_heads, bias=bias)
        if max_cache and not site.causal:
            raise ValueError(f"max_cache={max_cache} bounds a decoder's cache; an encoder has none")
        self.window, self.cross = max_cache or 0, mag == "cross_gate"
        self.branch = LinearBranch(
            head_dim=self.head_dim,
            order=order,
            trick=trick,
            gate=gate,
            nonlinearity=nonlinearity,
            chunk=chunk,
        )
        self.linear: Any = nn.ModuleDict({"norm": nn.RMSNorm(self.head_dim)})
        self.mag_weight: Tensor
        self.register_buffer("mag_weight", torch.tensor(float(mag_weight)))

    def set_mag_weight(self, weight: float) -> None:
        """Set α, from 0 (softmax attention only) to 1 (linear branch only)."""
        if not 0 <= weight <= 1:
            raise ValueError(f"mag_weight={weight} is not from 0 to 1")
        self.mag_weight.fill_(weight)

    def init_state(self, batch: int) -> LiZAState:
        cache = self.cache(batch, slots=self.window - 1 if self.window else None)
        memory = self.branch.init_state(batch, self.heads.g, self.q_proj.weight)
        return LiZAState(cache, memory)

    def forward(self, x: Tensor, ctx: Ctx, state: LiZAState | None = None) -> Out:
        tokens = local.Aligned.of(ctx)
        q, k, v = self.project(tokens.take(x))
        cache, memory = state or (None, None)
        weight = self.linear.norm.weight
        lin, memory = self.branch(q, k, v, weight, tokens.mask, memory, causal=self.causal)
        base, cache = self.softmax(q, k, v, tokens, cache)
        base, lin = (1 - self.mag_weight) * base, self.mag_weight * lin
        y = base + lin + base * lin if self.cross else base + lin
        kept = None if cache is None or memory is None else LiZAState(cache, memory)
        return Out(self.output(y, tokens), kept)

    def near(self, pos_q: Tensor, pos_k: Tensor) -> Tensor:
        """True where bounded attention looks."""
        return (pos_k <= pos_q) & (pos_q - pos_k < self.window)

    def softmax(
        self, q: Tensor, k: Tensor, v: Tensor, tokens: local.Aligned, cache: KVCache | None
    ) -> tuple[Tensor, KVCache | None]:
        """The softmax branch, before the output projection, and its cache."""
        if w := self.window:
            block, reach = min(BLOCK, w), w - 1
            return self.nearby(q, k, v, tokens, cache, block=block, reach=reach, rule=self.near)
        return self.everywhere(q, k, v, tokens.pos, tokens.mask, cache)
