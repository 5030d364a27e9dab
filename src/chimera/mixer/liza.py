"""LiZAttention: softmax attention and a delta-rule memory over the same q, k, v, o (SPEC M12).

    O_base = softmax(Q Kᵀ / √k + bias) V                                       (TPTT eq. 2)
    O_lin = the linear branch, `ops.liza`                                      (eq. 3-6, 16-24)
    O = (1−α) O_base + α O_lin                                                 additive, eq. 7
    O = (1−α) O_base + α O_lin + (1−α) O_base ⊙ α O_lin                        cross_gate, eq. 8

Position encodings act on the softmax branch only: the linear branch gets q and k before rotation.
α, `mag_weight`, is a buffer, not a parameter: a callback sets it (TPTT 4.2), and checkpoints save
it. With α = 0 the mixer equals attention, bit for bit if there is no padding. In an encoder, the
linear branch is bidirectional. x [b t d]; q [b h t k]; k, v [b g t k]; y = W_o O.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from chimera.contract import Context, Fraction, Out, Parts, PositiveInt, Site
from chimera.mixer.shared.softmax import SoftmaxMixer
from chimera.ops import local
from chimera.ops.attention import KVCache
from chimera.ops.liza import Gate, GateInput, LinearBranch, LinearState, Nonlinearity, Trick

#: Queries in a block of attention with `max_cache`.
BLOCK = 128


class LiZAState(NamedTuple):
    """States of the softmax branch and of the linear branch."""

    cache: KVCache
    linear: LinearState


class LiZAttention(SoftmaxMixer):
    """Softmax attention mixed with a delta-rule memory on the same queries, keys and values.

    Args:
        heads: query heads h; None for the model's number.
        kv_heads: key-value heads g, a divisor of h; None for h. h/g query heads share a memory.
        bias: biases in the four projections (ignored by quantisers without biases).
        order: n_h, virtual tokens (delta-rule steps) per token.
        trick: operation that makes virtual tokens: differences in time, rotations, mean of both.
        gate: source of the step sizes β: keys, values, or their product.
        gate_input: keys and values of β as the memory gets them, `normalised` (the paper), or as
            they were `projected`, which spreads β.
        pool: number of tokens, this one the last, whose mean gives β (3 in the paper).
        mag: combination of the branches, see above.
        mag_weight: initial α.
        nonlinearity: function applied to the memory between chunks (eq. 24).
        chunk: tokens in such a chunk; no effect without nonlinearity.
        max_cache: tokens that the softmax branch attends to, with the current token; None for all
            earlier tokens.
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
        gate_input: GateInput = "normalised",
        pool: PositiveInt = 3,
        mag: Literal["additive", "cross_gate"] = "additive",
        mag_weight: Fraction = 0.5,
        nonlinearity: Nonlinearity = "none",
        chunk: PositiveInt = 64,
        max_cache: PositiveInt | None = None,
    ) -> None:
        super().__init__(site, parts, heads=heads, kv_heads=kv_heads, bias=bias)
        if max_cache and not site.causal:
            raise ValueError(
                f"max_cache={max_cache} needs a decoder, because an encoder has no cache:"
                " use max_cache=null"
            )
        self.window = max_cache or 0
        self.cross = mag == "cross_gate"
        self.branch = LinearBranch(
            head_dim=self.head_dim,
            order=order,
            trick=trick,
            gate=gate,
            gate_input=gate_input,
            pool=pool,
            nonlinearity=nonlinearity,
            chunk=chunk,
        )
        self.linear: Any = nn.ModuleDict({"norm": nn.RMSNorm(self.head_dim)})
        self.mag_weight: Tensor
        self.register_buffer("mag_weight", torch.tensor(float(mag_weight)))

    def set_mag_weight(self, weight: float) -> None:
        """Set α, from 0 (softmax attention only) to 1 (linear branch only)."""
        if not 0 <= weight <= 1:
            raise ValueError(f"mag_weight={weight} is not in [0, 1]")
        self.mag_weight.fill_(weight)

    def init_state(self, batch: int) -> LiZAState:
        cache = self.cache(batch, slots=self.window - 1 if self.window else None)
        memory = self.branch.init_state(batch, self.heads.g, self.q_proj.weight)
        return LiZAState(cache, memory)

    def forward(self, x: Tensor, ctx: Context, state: LiZAState | None = None) -> Out:
        tokens = local.Aligned.of(ctx)
        q, k, v = self.project(tokens.take(x))
        cache, memory = state or (None, None)
        weight = self.linear.norm.weight
        stats: dict[str, Tensor] = {}
        lin, memory = self.branch(
            q, k, v, weight, tokens.mask, memory, causal=self.causal,
            stats=stats if self.training else None,
        )  # fmt: skip
        base, cache = self.softmax(q, k, v, tokens, cache)
        base = (1 - self.mag_weight) * base
        lin = self.mag_weight * lin
        y = base + lin + base * lin if self.cross else base + lin
        new_state = None if cache is None or memory is None else LiZAState(cache, memory)
        return Out(self.output(y, tokens), new_state, stats=stats)

    def visible(self, pos_q: Tensor, pos_k: Tensor) -> Tensor:
        """True where a query may attend to a key under `max_cache`."""
        return (pos_k <= pos_q) & (pos_q - pos_k < self.window)

    def softmax(
        self, q: Tensor, k: Tensor, v: Tensor, tokens: local.Aligned, cache: KVCache | None
    ) -> tuple[Tensor, KVCache | None]:
        """Output of the softmax branch before the output projection, and its cache."""
        if w := self.window:
            block = min(BLOCK, w)
            reach = w - 1
            return self.local_attention(
                q, k, v, tokens, cache, block=block, reach=reach, rule=self.visible
            )
        return self.full_attention(q, k, v, tokens.pos, tokens.mask, cache)
