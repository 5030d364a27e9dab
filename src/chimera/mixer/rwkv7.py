"""RWKV-7's time mixing: generalised delta rule with a decay per channel (arXiv 2503.14456).

    S_t = (diag(w_t) − (a_t ⊙ κ̂_t) κ̂_tᵀ) S_{t−1} + k̃_t v_tᵀ,   o_t = S_tᵀ r_t          (section 4)
    y   = W_o (g ⊙ (HeadNorm(o) + (r · (ρ ⊙ k̃)) v))                            per head
    r, k, v = W_r x^r, W_k x^k, W_v x^v,   x^c_t = x_t + μ_c ⊙ (x_{t−1} − x_t)     for each use c
    κ̂ = unit(ξ ⊙ k),   k̃ = k ⊙ (1 + (a − 1) ⊙ α),   a = σ(A₂ A₁ x^a + b_a)
    log w = −e^(−½) σ(D₂ tanh(D₁ x^d) + b_d),   g = G₂ σ(G₁ x^g)

S is the transpose of the paper's state. The recurrence is `ops.dplr`. A channel keeps at least
exp(−e^(−½)) = 54 % of itself per token; a between 0 and 1 erases what κ̂ reads.

From layer 2 on the paper mixes the values of the first layer into v. A layer here knows nothing of
other layers, so this is left out: published weights of several layers do not fit. The block's
channel mixing is ffn's matter. Initial values follow the authors' code: both low-rank maps begin at
0, so that decay and a begin as functions of the channel alone.
x [b t d]; r, k, v, a, w [b h t k]; S [b h k k].
"""

from __future__ import annotations

import math
from typing import ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from chimera.contract import CAUSAL, Context, Direction, Mixer, Out, Parts, PositiveInt, Site
from chimera.mixer.shared.gated import LowRank
from chimera.ops import channels, dplr
from chimera.ops.conv import causal_conv
from chimera.ops.delta import unit
from chimera.ops.precision import wide, widen

#: How fast the share of the previous token falls over channels, of r, d, k, v, a, g.
SHIFTS = (0.2, 0.9, 0.7, 0.7, 0.9, 0.2)
EPS = 64e-5


class RWKV7State(NamedTuple):
    """State S in float32 or wider, and the last input."""

    memory: Float[Tensor, "b h k k"]
    tail: Float[Tensor, "b 1 d"]


class RWKV7(Mixer):
    """Matrix memory with a decay and an erasing rate per channel (RWKV-7, time mixing).

    Args:
        heads: heads h; None for the model's number. Published models have heads of 64.
        decay_rank, gate_rank: ranks of the maps to w and a, and to g; None for the authors' rule.
        chunk: tokens in a chunk, a power of two; changes only speed.
    """

    component = "rwkv7"
    undecayed = ("mix", "removal", "replacement", "bonus", "norm_bias")
    directions: ClassVar[frozenset[Direction]] = CAUSAL
    forms = ("parallel", "chunkwise", "recurrent")
    source = "arXiv 2503.14456"
    cost = "t·d·(d + k + chunk)"
    state_size = "d·k + d"

    def __init__(
        self,
        site: Site,
        parts: Parts,
        *,
        heads: PositiveInt | None = None,
        decay_rank: PositiveInt | None = None,
        gate_rank: PositiveInt | None = None,
        chunk: PositiveInt = 64,
    ) -> None:
        super().__init__()
        h, d = heads or site.heads, site.dim
        if d % h:
            raise ValueError(f"heads={h} does not divide the model width {d}")
        self.heads = h
        self.site = site
        self.chunk = channels.chunk_size(chunk, chunk)
        self.r_proj, self.k_proj, self.v_proj = (
            parts.linear(d, d, bias=False, role="qkv") for _ in range(3)
        )
        rank = decay_rank or max(32, round(1.8 * d**0.5 / 32) * 32)
        self.decay = LowRank(parts.linear, d, rank, d, bias=True, between=torch.tanh)
        self.rate = LowRank(parts.linear, d, rank, d, bias=True)
        rank = gate_rank or max(32, round(0.6 * d**0.8 / 32) * 32)
        self.gate = LowRank(parts.linear, d, rank, d, bias=False, between=torch.sigmoid)
        self.mix = nn.Parameter(torch.empty(len(SHIFTS), d))
        self.removal = nn.Parameter(torch.full((d,), 0.85))
        self.replacement = nn.Parameter(torch.ones(d))
        self.bonus = nn.Parameter(torch.zeros(d))
        self.norm = nn.Parameter(torch.ones(d))
        self.norm_bias = nn.Parameter(torch.zeros(d))
        self.o_proj = parts.linear(d, d, bias=False, role="out")
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Initial values of the authors, which depend on channel and depth."""
        d, layer, depth = self.site.dim, self.site.layer, self.site.depth
        channel = torch.arange(d, device=self.mix.device) / d
        for mix, power in zip(self.mix, SHIFTS, strict=True):
            mix.copy_(1 - channel ** (power * (1 - layer / depth)))
        power = 0.85 + math.sqrt(layer / max(depth - 1, 1))
        if self.decay.bias is not None and self.rate.bias is not None:
            self.decay.bias.copy_(5 * (channel * d / max(d - 1, 1)) ** power - 6.5)
            self.rate.bias.zero_()
        self.decay.up.zero_()
        self.rate.up.zero_()

    def init_state(self, batch: int) -> RWKV7State:
        like, k = self.mix, self.site.dim // self.heads
        memory = like.new_zeros(batch, self.heads, k, k, dtype=wide(like))
        return RWKV7State(memory, like.new_zeros(batch, 1, self.site.dim))

    def forward(self, x: Tensor, ctx: Context, state: RWKV7State | None = None) -> Out:
        memory, tail = state or (None, None)
        previous = x.new_tensor([1.0, 0.0]).expand(x.shape[-1], 2)
        shifted, tail = causal_conv(x, previous, None, tail, ctx.mask)
        of = [torch.lerp(x, shifted, mix.to(x.dtype)) for mix in self.mix]
        r, k, v, a, w = (
            widen(y) for y in (self.r_proj(of[0]), self.k_proj(of[2]), self.v_proj(of[3]),
                               self.rate(of[4]), self.decay(of[1]))
        )  # fmt: skip
        a, g = a.sigmoid(), -math.exp(-0.5) * w.sigmoid()
        erased, k = k * self.removal, k * (1 + (a - 1) * self.replacement)
        split = "b t (h k) -> b h t k"
        r, k, v, a, g, erased = (rearrange(y, split, h=self.heads) for y in (r, k, v, a, g, erased))
        erased = unit(erased)
        k, a, g = channels.masked(ctx.mask, k, a, g)
        if memory is not None and x.shape[1] == 1:
            y, memory = dplr.step(r, k, v, -erased, a * erased, g, memory)
        else:
            y, memory = dplr.chunkwise(r, k, v, -erased, a * erased, g, memory, chunk=self.chunk)
        y = rearrange(F.layer_norm(y, y.shape[-1:], eps=EPS), "b h t v -> b t (h v)")
        own = (r * k * rearrange(self.bonus, "(h k) -> h 1 k", h=self.heads)).sum(-1, True) * v
        y = y * self.norm + self.norm_bias + rearrange(own, "b h t v -> b t (h v)")
        y = (y * self.gate(of[5])).to(x.dtype)
        y = self.o_proj(y)
        return Out(y, None if memory is None else RWKV7State(memory, tail))
