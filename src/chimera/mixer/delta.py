"""DeltaNet and DeltaProduct (SPEC M11; TPTT 3.3; arXiv 2406.06484, 2502.10297, 2412.06464).

    h ← exp(g_t) h                                         only with `decay`
    h ← h + β_tj k_tj (v_tj − hᵀk_tj)ᵀ                     for j = 1 … order
    y_t = W_o RMSNorm(hᵀ q_t)                              per head, after the last j
    q = unit(SiLU(W_q x)),  k_j = unit(SiLU(W_kj x)),  v_j = SiLU(W_vj x)
    β_j = σ(w_βj x), or 2σ(w_βj x),  g = −exp(a) softplus(w_g x + b)

Each step multiplies the state by I − β k kᵀ. For β in [0, 1] this erases the value stored at k; for
β up to 2 it reflects the value (a negative eigenvalue, needed to compute parity; arXiv 2411.12537).
x [b t d]; q [b h t k]; k and v [b h t order k]; state h [b h k k].
"""

from __future__ import annotations

import math
from typing import ClassVar, Literal, NamedTuple

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from chimera.contract import CAUSAL, Context, Direction, Mixer, Out, Parts, PositiveInt, Site
from chimera.ops import delta
from chimera.ops.conv import causal_conv
from chimera.ops.precision import wide, widen


class DeltaState(NamedTuple):
    """State h in float32 or wider, and the last inputs of the convolutions of q, k and v."""

    memory: Float[Tensor, "b h k k"]
    tails: tuple[Float[Tensor, "b tail d"], ...]


class DeltaProduct(Mixer):
    """Matrix memory with `order` delta-rule updates per token, causal. [b t d] to [b t d].

    Args:
        heads: heads h; None for the model's number.
        order: n_h, delta-rule updates per token; 1 is DeltaNet.
        negative_eigenvalues: β up to 2 instead of 1.
        decay: learned decay before each token, a function of the input (Gated DeltaNet).
        conv: taps of DeltaNet's causal depthwise convolution on q, k and v; 0 for no convolution.
    """

    component = "delta"
    undecayed = ("rate", "decay_bias")
    directions: ClassVar[frozenset[Direction]] = CAUSAL
    forms = ("parallel", "chunkwise", "recurrent")
    source = "M11; TPTT 3.3; arXiv 2406.06484, 2502.10297"
    cost = "order·t·(k + 64)·d"
    state_size = "h·k·k"

    def __init__(
        self,
        site: Site,
        parts: Parts,
        *,
        heads: PositiveInt | None = None,
        order: PositiveInt = 1,
        negative_eigenvalues: bool = False,
        decay: bool = False,
        conv: Literal[0, 4] = 0,
    ) -> None:
        super().__init__()
        h = self.heads = heads or site.heads
        if site.dim % h:
            raise ValueError(f"heads={h} does not divide the model width {site.dim}")
        self.order = order
        self.max_beta = 2.0 if negative_eigenvalues else 1.0
        self.head_dim = site.dim // h
        widths = (site.dim, order * site.dim, order * site.dim)
        self.q_proj, self.k_proj, self.v_proj = (
            parts.linear(site.dim, width, bias=False, role="qkv") for width in widths
        )
        self.beta_proj = parts.linear(site.dim, order * h, bias=False, role="gate")
        self.decay_proj = None
        if decay:
            # Initial half-lives from about half a token to hundreds of tokens, as in Mamba.
            self.decay_proj = parts.linear(site.dim, h, bias=False, role="gate")
            self.rate = nn.Parameter(torch.empty(h).uniform_(1, 16).log())
            dt = torch.empty(h).uniform_(math.log(1e-3), math.log(1e-1)).exp()
            self.decay_bias = nn.Parameter(dt.expm1().log())  # softplus of it is dt
        bound = conv**-0.5 if conv else 0.0
        self.convs = nn.ParameterList(
            nn.Parameter(torch.empty(width, conv).uniform_(-bound, bound))
            for width in widths * bool(conv)
        )
        self.norm = nn.RMSNorm(self.head_dim, eps=1e-6)
        self.o_proj = parts.linear(site.dim, site.dim, bias=False, role="out")

    def init_state(self, batch: int) -> DeltaState:
        like = self.q_proj.weight
        k = self.head_dim
        tails = (like.new_zeros(batch, w.shape[1] - 1, w.shape[0]) for w in self.convs)
        return DeltaState(like.new_zeros(batch, self.heads, k, k, dtype=wide(like)), tuple(tails))

    def forward(self, x: Tensor, ctx: Context, state: DeltaState | None = None) -> Out:
        q = self.q_proj(x)
        k = self.k_proj(x)
        v = self.v_proj(x)
        tails: list[Tensor] = []
        if self.convs:
            old_tails = (None,) * 3 if state is None else state.tails
            pairs = [
                causal_conv(y, w, None, tail, ctx.mask, silu=True)
                for y, w, tail in zip((q, k, v), self.convs, old_tails, strict=True)
            ]
            (q, k, v), tails = ([p[i] for p in pairs] for i in (0, 1))
        else:
            q, k, v = F.silu(q), F.silu(k), F.silu(v)
        q = delta.unit(rearrange(q, "b t (h k) -> b h t k", h=self.heads))
        split = "b t (n h k) -> b h t n k"
        k = delta.unit(rearrange(k, split, h=self.heads, n=self.order))
        v = rearrange(v, split, h=self.heads, n=self.order)
        beta = rearrange(self.beta_proj(x), "b t (n h) -> b h t n 1", n=self.order)
        beta, decay = delta.masked(
            self.max_beta * beta.to(q.dtype).sigmoid(), self.decay(x), ctx.mask
        )
        memory: Tensor | None
        if state is not None and x.shape[1] == 1:
            y, memory = delta.step(q, k, v, beta, decay, state.memory)
        else:
            before = None if state is None else state.memory
            y, memory = delta.chunkwise(q, k, v, beta, decay, before)
        y = self.norm(y.to(self.norm.weight.dtype)).to(x.dtype)
        y = self.o_proj(rearrange(y, "b h t k -> b t (h k)"))
        return Out(y, None if memory is None else DeltaState(memory, tuple(tails)))

    def decay(self, x: Float[Tensor, "b t d"]) -> Float[Tensor, "b h t"] | None:
        """Log-decay of each token; None without decay."""
        if self.decay_proj is None:
            return None
        dt = F.softplus(widen(self.decay_proj(x)) + widen(self.decay_bias))
        return rearrange(-widen(self.rate).exp() * dt, "b t h -> b h t")
