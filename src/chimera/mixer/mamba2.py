"""Mamba-2: state-space model with one decay per head, as matrix products (arXiv 2405.21060).

    (z, x̂, B, C) = W_in x,   Δ = softplus(W_Δ x + dt_bias),   (x̂, B, C) ← SiLU(conv(x̂, B, C))
    h_t = exp(Δ_t A) h_{t−1} + Δ_t B_t x̂_tᵀ,   s_t = C_tᵀ h_t + D x̂_t,   A = −exp(A_log) per head
    y = W_out RMSNorm(s ⊙ SiLU(z))                                            (eq. 1, fig. 6 right)

The recurrence is `ops.ssd`: all heads of a group read with the same C and write with the same B.
Widths are those of the published models: state 128, heads of 64, inner width 2·d.

Paper and public code agree. Where two public codes differ, this is mamba_ssm: exp(A_log) starts
uniform in [1, 16] (transformers starts it at 1, 2, …, h: with 24 heads its fastest states forget
1.5 times as fast), and Δ has no upper limit. B, C and z are one matrix with x̂, Δ has its own, so
that quantisers with a scale per matrix do not give Δ the scale of the others.
x [b t d]; x̂, z [b t e]; B, C [b t g n]; Δ [b t h]; h [b h n p] with h·p = e.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from chimera.contract import CAUSAL, Context, Direction, Out, Parts, PositiveInt, Site
from chimera.mixer.shared.gated import DecayGate, ShortConv, StateSpace
from chimera.mixer.shared.of_transformers import OfMamba2
from chimera.ops import ssd
from chimera.ops.channels import chunk_size
from chimera.ops.precision import wide
from chimera.ops.together import together


class Mamba2State(NamedTuple):
    """State h in float32 or wider, and the last inputs of the convolution."""

    memory: Float[Tensor, "b h n p"]
    tail: Float[Tensor, "b tail x"]


class Mamba2(OfMamba2, StateSpace):
    """State-space model with one decay per head (Mamba-2, SSD).

    Args:
        state: n, numbers in the state per channel.
        expand: inner width e as a multiple of d.
        head_dim: channels of a head, p; narrower inner widths are one head.
        groups: groups g of heads with a B and C each; the norm is over a group's channels.
        conv: taps of the causal convolution.
        chunk: tokens in a chunk, a power of two; changes only speed.
    """

    component = "mamba2"
    undecayed = ("D",)
    directions: ClassVar[frozenset[Direction]] = CAUSAL
    forms = ("parallel", "chunkwise", "recurrent")
    source = "arXiv 2405.21060"
    cost = "t·d·(d + n + chunk)"
    state_size = "e·n + (conv−1)·(e + 2·g·n)"

    def __init__(
        self,
        site: Site,
        parts: Parts,
        *,
        state: PositiveInt = 128,
        expand: PositiveInt = 2,
        head_dim: PositiveInt = 64,
        groups: PositiveInt = 1,
        conv: PositiveInt = 4,
        chunk: PositiveInt = 64,
    ) -> None:
        super().__init__()
        self.set_widths(site.dim, state, expand, head_dim, groups)
        e, h = self.inner, self.heads
        self.chunk = chunk_size(chunk, chunk)
        self.in_proj = parts.linear(site.dim, e + sum(self.widths), bias=False, role="qkv")
        self.dt_proj = parts.linear(site.dim, h, bias=False, role="gate")
        self.conv = ShortConv(sum(self.widths), conv, bias=True)
        self.decay = DecayGate(h)
        self.D = nn.Parameter(torch.ones(h))
        self.norm = nn.Parameter(torch.ones(e))
        self.out_proj = parts.linear(e, site.dim, bias=False, role="out")

    def init_state(self, batch: int) -> Mamba2State:
        like = self.D
        memory = like.new_zeros(batch, self.heads, self.state, self.head_dim, dtype=wide(like))
        return Mamba2State(memory, self.conv.init_tail(batch, like))

    def forward(self, x: Tensor, ctx: Context, state: Mamba2State | None = None) -> Out:
        memory, tail = state or (None, None)
        joined, slow = together(x, self.in_proj, self.dt_proj)
        z, mixed = joined.split((self.inner, sum(self.widths)), -1)
        mixed, tail = self.conv(mixed, tail, ctx.mask)
        u, b, c = mixed.split(self.widths, -1)
        u = rearrange(u, "b t (h p) -> b t h p", h=self.heads)
        b, c = (rearrange(y, "b t (g n) -> b g t n", g=self.groups) for y in (b, c))
        delta = ssd.masked(self.decay.steps(slow), ctx.mask)
        given = c, b, u.transpose(1, 2), (self.decay.rates() * delta).mT, delta.mT
        if memory is not None and x.shape[1] == 1:
            y, memory = ssd.step(*given, memory, self.D)
        else:
            y, memory = ssd.chunkwise(*given, memory, self.D, chunk=self.chunk)
        y = self.gated(y.transpose(1, 2).flatten(2), z).to(x.dtype)
        y = self.out_proj(y)
        return Out(y, None if memory is None else Mamba2State(memory, tail))
