"""Log-linear Mamba-2: a state for each power of two of the distance (arXiv 2506.04761).

    (z, x̂, B, C) = W_in x,   Δ = softplus(W_Δ x + dt_bias),   (x̂, B, C) ← SiLU(conv(x̂, B, C))
    s_t = Σ_ℓ λ_t^ℓ C_tᵀ S_t^ℓ + D x̂_t,   S_t^ℓ = Σ_{s ∈ B_t^ℓ} exp(Σ_{s<i≤t} Δ_i A) Δ_s B_s x̂_sᵀ
    λ = softplus(L ⊙ W_λ x),   A = −exp(A_log) per head,   y = W_out RMSNorm(s ⊙ SiLU(z))

(section 3; Mamba-2 is the case λ = 1.) The buckets B^ℓ double with the distance, so that what is
near has states of its own; the last of l levels has all that is older. The recurrence is
`ops.log_linear`. Groups, widths and initial values are those of `mamba2`.

The paper leaves λ's map open; this is the authors' (L starts at 1). Public code (fla) has 15 levels
and refuses longer texts, and prompts after the first; here the last level takes what is older, and
pieces of any length continue. Left out: the variant on the gated delta rule. The state has l times
the numbers of `mamba2`. x [b t d]; x̂, z [b t e]; B, C [b t g n]; Δ [b t h]; λ [b t h l]; S [b h l
n p].
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from chimera.contract import CAUSAL, Context, Direction, Out, Parts, PositiveInt, Site
from chimera.mixer.shared.gated import DecayGate, ShortConv, StateSpace
from chimera.ops import log_linear, ssd
from chimera.ops.channels import chunk_size
from chimera.ops.local import Aligned
from chimera.ops.log_linear import Levels
from chimera.ops.precision import wide, widen


class LogLinearState(NamedTuple):
    """States of the levels in float32 or wider, tokens so far, last inputs of the convolution."""

    levels: Levels
    tail: Float[Tensor, "b tail x"]


class LogLinear(StateSpace):
    """Mamba-2 with a state for each power of two of the distance (log-linear attention).

    Args:
        state: n, numbers in a level's state per channel.
        expand: inner width e as a multiple of d.
        head_dim: channels of a head, p; narrower inner widths are one head.
        groups: groups g of heads with a B and C each; the norm is over a group's channels.
        levels: l; None for as many as the model's longest text needs.
        conv: taps of the causal convolution.
        chunk: tokens in a chunk, a power of two; changes only speed.
    """

    component = "log_linear"
    undecayed = ("D", "L")
    directions: ClassVar[frozenset[Direction]] = CAUSAL
    forms = ("parallel", "chunkwise", "recurrent")
    source = "arXiv 2506.04761"
    cost = "t·d·(d + n·log t + chunk)"
    state_size = "l·e·n + (conv−1)·(e + 2·g·n)"

    def __init__(
        self,
        site: Site,
        parts: Parts,
        *,
        state: PositiveInt = 128,
        expand: PositiveInt = 2,
        head_dim: PositiveInt = 64,
        groups: PositiveInt = 1,
        levels: PositiveInt | None = None,
        conv: PositiveInt = 4,
        chunk: PositiveInt = 64,
    ) -> None:
        super().__init__()
        self.set_widths(site.dim, state, expand, head_dim, groups)
        e, h = self.inner, self.heads
        self.levels = levels or log_linear.levels_for(site.max_len)
        self.chunk = chunk_size(chunk, chunk)
        self.in_proj = parts.linear(site.dim, e + sum(self.widths), bias=False, role="qkv")
        self.dt_proj = parts.linear(site.dim, h, bias=False, role="gate")
        self.level_proj = parts.linear(site.dim, h * self.levels, bias=False, role="gate")
        self.conv = ShortConv(sum(self.widths), conv, bias=True)
        self.decay = DecayGate(h)
        self.D = nn.Parameter(torch.ones(h))
        self.L = nn.Parameter(torch.ones(h, self.levels))
        self.norm = nn.Parameter(torch.ones(e))
        self.out_proj = parts.linear(e, site.dim, bias=False, role="out")

    def init_state(self, batch: int) -> LogLinearState:
        like = self.D
        shape = (batch, self.heads, self.levels, self.state, self.head_dim)
        count = like.new_zeros(batch, dtype=torch.long)
        levels = Levels(like.new_zeros(shape, dtype=wide(like)), count)
        return LogLinearState(levels, self.conv.init_tail(batch, like))

    def forward(self, x: Tensor, ctx: Context, state: LogLinearState | None = None) -> Out:
        levels, tail = state or (None, None)
        # Without a state, the tree begins at the first real token of each row.
        tokens = Aligned.of(ctx) if state is None else Aligned(ctx.pos, ctx.mask)
        x = tokens.take(x)
        mask = tokens.mask
        z, mixed = self.in_proj(x).split((self.inner, sum(self.widths)), -1)
        mixed, tail = self.conv(mixed, tail, mask)
        u, b, c = mixed.split(self.widths, -1)
        u = widen(rearrange(u, "b t (h p) -> b h t p", h=self.heads))
        b, c = (rearrange(y, "b t (g n) -> b g t n", g=self.groups) for y in (b, c))
        delta = ssd.masked(self.decay.steps(self.dt_proj(x)), mask)
        g = (self.decay.rates() * delta).mT
        v = u * delta.mT[..., None]
        scale = rearrange(widen(self.level_proj(x)), "b t (h l) -> b h t l", h=self.heads)
        scale = F.softplus(scale * widen(self.L)[:, None])
        if levels is not None and x.shape[1] == 1:
            y, levels = log_linear.step(c, b, v, g, scale, levels, mask)
        else:
            y, levels = log_linear.chunkwise(c, b, v, g, scale, levels, mask, chunk=self.chunk)
        y = rearrange(y + u * self.D[:, None, None], "b h t p -> b t (h p)")
        y = self.gated(y, z).to(x.dtype)
        y = tokens.restore(y)
        return Out(self.out_proj(y), None if levels is None else LogLinearState(levels, tail))
