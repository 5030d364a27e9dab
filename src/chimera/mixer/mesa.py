"""MesaNet: each token reads by the regression that fits all past tokens (arXiv 2506.05233).

    H_t = γ_t H_{t−1} + β_t k_t k_tᵀ,   G_t = γ_t G_{t−1} + β_t v_t k_tᵀ           (section 3)
    o_t = G_t (H_t + Λ)⁻¹ q_t,          y = W_o RMSNorm(o)                 per head (eq. 5)
    q = unit(SiLU(conv(W_q x))),  k = unit(SiLU(conv(W_k x))),  v = W_v x
    γ = σ(W_γ x + b_γ),  β = σ(W_β x + b_β),  Λ = λ_min + softplus(λ), starts at 1

G_t (H_t + Λ)⁻¹ is the linear map from keys to values with the least decayed square error and ridge
Λ; the delta rule takes one gradient step towards it. The recurrence is `ops.mesa`: conjugate
gradients, all tokens at once, and the gradient of the exact solution by a second solve.

Public code (fla) takes `steps` steps for every token and adds 1e-5 to the denominators, which
disturbs the last steps; it backpropagates by a second solve too. This ends each token at its
tolerance (1e-6 of ‖q‖, in float32 the rounding of a product). Lengths of short keys differ as in
`gated_delta`; the optional output gate is left out. x [b t d]; q, k, v [b h t k]; state [H, G]
[b h k 2k].
"""

from __future__ import annotations

import math
from typing import ClassVar, Literal, NamedTuple

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from chimera.contract import (
    CAUSAL,
    Context,
    Direction,
    Mixer,
    NonNegativeFloat,
    Out,
    Parts,
    PositiveFloat,
    PositiveInt,
    Site,
)
from chimera.mixer.shared.gated import ShortConv
from chimera.ops import channels, mesa
from chimera.ops.channels import chunk_size
from chimera.ops.delta import unit
from chimera.ops.precision import wide, widen
from chimera.ops.together import together


class MesaState(NamedTuple):
    """H and G in float32 or wider, and the last inputs of the convolution of [q; k]."""

    memory: Float[Tensor, "b h k kv"]
    tail: Float[Tensor, "b tail qk"]


class Mesa(Mixer):
    """Matrix memory that is read by the least-squares fit of all past tokens (MesaNet).

    Args:
        heads: heads h; None for the model's number.
        conv: taps of the causal convolution on q and k; 0 for none.
        ridge: λ_min, lower bound of Λ, below 1.
        steps: largest number of steps of the solver.
        tolerance: residual at which a token's solution ends, relative to its query.
        chunk: tokens in a chunk, a power of two; changes only speed.
    """

    component = "mesa"
    undecayed = ("ridge", "decay_bias", "beta_bias")
    directions: ClassVar[frozenset[Direction]] = CAUSAL
    forms = ("parallel", "chunkwise", "recurrent")
    source = "arXiv 2506.05233"
    cost = "t·d·(d + steps·(k + chunk))"
    state_size = "2·h·k·k + 2·(conv−1)·d"

    def __init__(
        self,
        site: Site,
        parts: Parts,
        *,
        heads: PositiveInt | None = None,
        conv: Literal[0, 2, 3, 4] = 4,
        ridge: PositiveFloat = 0.25,
        steps: PositiveInt = 30,
        tolerance: NonNegativeFloat = 1e-6,
        chunk: PositiveInt = 64,
    ) -> None:
        super().__init__()
        h = self.heads = heads or site.heads
        if site.dim % h:
            raise ValueError(f"heads={h} does not divide the model width {site.dim}")
        if ridge >= 1:
            raise ValueError(f"ridge={ridge} of mixer=mesa has to be below 1, where Λ starts")
        self.head_dim = site.dim // h
        self.lowest = ridge
        self.chunk = chunk_size(chunk, chunk)
        self.solver = mesa.Solver(steps, tolerance)
        self.q_proj, self.k_proj, self.v_proj = (
            parts.linear(site.dim, site.dim, bias=False, role="qkv") for _ in range(3)
        )
        self.decay_proj = parts.linear(site.dim, h, bias=False, role="gate")
        self.beta_proj = parts.linear(site.dim, h, bias=False, role="gate")
        self.decay_bias = nn.Parameter(torch.zeros(h))
        self.beta_bias = nn.Parameter(torch.zeros(h))
        self.ridge = nn.Parameter(torch.full((h, self.head_dim), math.log(math.expm1(1 - ridge))))
        self.conv = ShortConv(2 * site.dim, conv)
        self.norm = nn.Parameter(torch.ones(self.head_dim))
        self.o_proj = parts.linear(site.dim, site.dim, bias=False, role="out")

    @property
    def flops_at_most(self) -> str:
        """See `contract.Mixer.flops_at_most`."""
        return f"mixer=mesa counts all {self.solver.steps} steps of its solver; a CPU ends earlier"

    def init_state(self, batch: int) -> MesaState:
        like = self.q_proj.weight
        k = self.head_dim
        memory = like.new_zeros(batch, self.heads, k, 2 * k, dtype=wide(like))
        return MesaState(memory, self.conv.init_tail(batch, like))

    def forward(self, x: Tensor, ctx: Context, state: MesaState | None = None) -> Out:
        memory, tail = state or (None, None)
        (mixed,) = together(x, (self.q_proj, self.k_proj))
        mixed, tail = self.conv(mixed, tail, ctx.mask)
        split = "b t (h k) -> b h t k"
        q, k = (unit(rearrange(y, split, h=self.heads)) for y in mixed.chunk(2, -1))
        v = rearrange(self.v_proj(x), split, h=self.heads)
        beta = (widen(self.beta_proj(x)) + widen(self.beta_bias)).sigmoid().mT
        g = F.logsigmoid(widen(self.decay_proj(x)) + widen(self.decay_bias)).mT
        beta, g = channels.masked(ctx.mask, beta, g)
        ridge = self.lowest + F.softplus(widen(self.ridge))
        if memory is not None and x.shape[1] == 1:
            y, memory = mesa.step(q, k, v, beta, g, ridge, memory, solver=self.solver)
        else:
            y, memory = mesa.chunkwise(
                q, k, v, beta, g, ridge, memory, chunk=self.chunk, solver=self.solver
            )
        y = F.rms_norm(y, y.shape[-1:], self.norm.to(y.dtype), 1e-5)
        y = rearrange(y, "b h t k -> b t (h k)").to(x.dtype)
        y = self.o_proj(y)
        return Out(y, None if memory is None else MesaState(memory, tail))
