"""LiZAttention: softmax attention and a delta-rule memory over the same q, k, v, o (SPEC M12).

    O_base = softmax(Q Kᵀ / √k + bias) V                                       (TPTT eq. 2)
    O_lin = the linear branch, `ops.liza`                                      (eq. 3-6, 16-24)
    O = (1−α) O_base + α O_lin                                                 additive, eq. 7
    O = (1−α) O_base + α O_lin + (1−α) O_base ⊙ α O_lin                        cross_gate, eq. 8
    α_h = σ(logit α + s_h)                                                mag_learn: head, 3.2, 3.5

Position encodings act on the softmax branch only: the linear branch gets q and k before rotation.
α, `mag_weight`, is a buffer: a callback sets it (TPTT 4.2), and checkpoints save it. With α = 0 the
mixer equals attention, bit for bit if there is no padding. In evaluation, α = 0 computes no memory,
and α = 1 neither attention nor a cache of keys: time is linear in the length, a state constant. In
an encoder, the linear branch is bidirectional. x [b t d]; q [b h t k]; k, v [b g t k]; y = W_o O.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn

from chimera.contract import Context, Fraction, Out, Parts, PositiveInt, Site
from chimera.mixer.shared.softmax import SoftmaxMixer
from chimera.ops import local
from chimera.ops.attention import KVCache
from chimera.ops.liza import (
    LEARN_RATE,
    Beta,
    Edge,
    Gate,
    GateInput,
    LinearBranch,
    LinearState,
    Nonlinearity,
    Trick,
    mix,
)

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
        pool: number of tokens, this one the last, whose mean gives β (3 in the authors' package);
            `all` for the mean over all so far (eq. 5).
        beta: `scalar` for one β a head, as Table 1 says; None for one per channel.
        mag: combination of the branches, see above.
        mag_weight: initial α.
        mag_learn: `head` learns α of each head from there (eq. 7); None leaves it to a schedule.
        nonlinearity: function applied to the memory between chunks (eq. 24).
        chunk: tokens in such a chunk; no effect without nonlinearity.
        max_cache: tokens that the softmax branch attends to, with the current token; None for all
            earlier tokens.
    """

    undecayed = ("mag_shift",)
    rate_factors: ClassVar[dict[str, float]] = {"mag_shift": LEARN_RATE}
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
        pool: PositiveInt | Literal["all"] = 3,
        beta: Beta | None = None,
        mag: Literal["additive", "cross_gate"] = "additive",
        mag_weight: Fraction = 0.5,
        mag_learn: Literal["head"] | None = None,
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
            beta=beta,
            nonlinearity=nonlinearity,
            chunk=chunk,
        )
        self.linear: Any = nn.ModuleDict({"norm": nn.RMSNorm(self.head_dim)})
        self.mag_weight: Tensor
        self.register_buffer("mag_weight", torch.tensor(float(mag_weight)))
        self.edge = Edge(self.mag_weight, float(mag_weight))
        shift = torch.zeros(self.heads.h, 1, 1) if mag_learn else None
        self.mag_shift = None if shift is None else nn.Parameter(shift)

    def set_mag_weight(self, weight: float) -> None:
        """Set α, from 0 (softmax attention only) to 1 (linear branch only)."""
        if not 0 <= weight <= 1:
            raise ValueError(f"mag_weight={weight} is not in [0, 1]")
        self.mag_weight.fill_(weight)

    def init_state(self, batch: int) -> LiZAState:
        slots = self.window - 1 if self.window else None
        cache = self.cache(batch, slots=0 if self.edge.of(self.mag_weight) == 1 else slots)
        memory = self.branch.init_state(batch, self.heads.g, self.q_proj.weight)
        return LiZAState(cache, memory)

    def forward(self, x: Tensor, ctx: Context, state: LiZAState | None = None) -> Out:
        tokens = local.Aligned.of(ctx)
        q, k, v = self.project(tokens.take(x))
        cache, memory = state or (None, None)
        weight = self.linear.norm.weight
        stats: dict[str, Tensor] = {}
        alone = None if self.training else self.edge.of(self.mag_weight)
        if alone != 0:
            y, memory = self.branch(
                q, k, v, weight, tokens.mask, memory, causal=self.causal,
                stats=stats if self.training else None,
            )  # fmt: skip
        if alone != 1:
            lin = y if alone is None else None
            y, cache = self.softmax(q, k, v, tokens, cache)
            if lin is not None:
                y = mix(y, lin, self.mag_weight, self.mag_shift, cross=self.cross)
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
