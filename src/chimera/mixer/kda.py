"""Kimi Delta Attention: delta rule with a decay per channel (arXiv 2510.26692).

    S_t = (I − β_t k_t k_tᵀ) diag(α_t) S_{t−1} + β_t k_t v_tᵀ,   o_t = S_tᵀ q_t              (eq. 1)
    y   = W_o (RMSNorm(o) ⊙ σ(G₂ G₁ x))                                      per head, section 4
    q = unit(SiLU(conv(W_q x)))/√k,  k = unit(SiLU(conv(W_k x))),  v = SiLU(conv(W_v x))
    β = σ(W_β x),   α = exp(−exp(A_log) softplus(F₂ F₁ x + dt_bias))

The recurrence is `ops.dplr` with a = −β k ⊙ α, b = k and v = β v. Gated DeltaNet is the case of
one α per head. The low-rank maps have the rank of a head's width, A_log is a number per head,
dt_bias one per channel.

The paper leaves α's map open; this is that of the authors' code. Public codes differ in a bias of
G₂ (with it in the authors' kernel library, without it in transformers and here). Lengths of short
keys differ from public code as in `gated_delta`. x [b t d]; q, k, α, v [b h t k]; S [b h k k].
"""

from __future__ import annotations

from typing import ClassVar, Literal, NamedTuple

from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from chimera.contract import CAUSAL, Context, Direction, Mixer, Out, Parts, PositiveInt, Site
from chimera.mixer.shared.gated import DecayGate, GatedNorm, LowRank, ShortConv
from chimera.ops import channels, dplr
from chimera.ops.delta import unit
from chimera.ops.precision import wide
from chimera.ops.together import together


class KDAState(NamedTuple):
    """State S in float32 or wider, and the last inputs of the convolution of [q; k; v]."""

    memory: Float[Tensor, "b h k k"]
    tail: Float[Tensor, "b tail qkv"]


class KimiDelta(Mixer):
    """Matrix memory with a decay per channel and one delta-rule update per token (Kimi Linear).

    Args:
        heads: heads h; None for the model's number.
        head_dim: width of a head's keys and values; None for d/h.
        negative_eigenvalues: β up to 2 instead of 1.
        conv: taps of the causal convolution on q, k and v; 0 for none.
        chunk: tokens in a chunk, a power of two; changes only speed.
    """

    component = "kda"
    directions: ClassVar[frozenset[Direction]] = CAUSAL
    forms = ("parallel", "chunkwise", "recurrent")
    source = "arXiv 2510.26692"
    cost = "t·d·(d + k + chunk)"
    state_size = "h·k·k + 3·(conv−1)·h·k"

    def __init__(
        self,
        site: Site,
        parts: Parts,
        *,
        heads: PositiveInt | None = None,
        head_dim: PositiveInt | None = None,
        negative_eigenvalues: bool = False,
        conv: Literal[0, 2, 3, 4] = 4,
        chunk: PositiveInt = 64,
    ) -> None:
        super().__init__()
        h = self.heads = heads or site.heads
        if head_dim is None and site.dim % h:
            raise ValueError(f"heads={h} does not divide the model width {site.dim}")
        k = self.head_dim = head_dim or site.dim // h
        self.max_beta = 2.0 if negative_eigenvalues else 1.0
        self.chunk = channels.chunk_size(chunk, chunk)
        self.q_proj, self.k_proj, self.v_proj = (
            parts.linear(site.dim, h * k, bias=False, role="qkv") for _ in range(3)
        )
        self.beta_proj = parts.linear(site.dim, h, bias=False, role="gate")
        self.decay_proj = LowRank(parts.linear, site.dim, k, h * k, bias=False)
        self.gate_proj = LowRank(parts.linear, site.dim, k, h * k, bias=False)
        self.conv = ShortConv(3 * h * k, conv)
        self.decay = DecayGate(h, h * k)
        self.norm = GatedNorm(k, gate="sigmoid")
        self.o_proj = parts.linear(h * k, site.dim, bias=False, role="out")

    def init_state(self, batch: int) -> KDAState:
        like, k = self.q_proj.weight, self.head_dim
        memory = like.new_zeros(batch, self.heads, k, k, dtype=wide(like))
        return KDAState(memory, self.conv.init_tail(batch, like))

    def forward(self, x: Tensor, ctx: Context, state: KDAState | None = None) -> Out:
        memory, tail = state or (None, None)
        (mixed,) = together(x, (self.q_proj, self.k_proj, self.v_proj))
        mixed, tail = self.conv(mixed, tail, ctx.mask)
        split = "b t (h k) -> b h t k"
        q, k, v = (rearrange(y, split, h=self.heads) for y in mixed.chunk(3, -1))
        q, k = unit(q) * self.head_dim**-0.5, unit(k)
        g = rearrange(self.decay(self.decay_proj(x)), split, h=self.heads)
        beta = self.max_beta * self.beta_proj(x).to(k.dtype).sigmoid().mT[..., None]
        k, beta, g = channels.masked(ctx.mask, k, beta, g)
        a, v = -beta * k * g.exp(), beta * v
        if memory is not None and x.shape[1] == 1:
            y, memory = dplr.step(q, k, v, a, None, g, memory)
        else:
            y, memory = dplr.chunkwise(q, k, v, a, None, g, memory, chunk=self.chunk)
        z = rearrange(self.gate_proj(x), "b t (h k) -> b t h k", h=self.heads)
        y = self.norm(rearrange(y, "b h t k -> b t h k"), z).flatten(2).to(x.dtype)
        y = self.o_proj(y)
        return Out(y, None if memory is None else KDAState(memory, tail))
