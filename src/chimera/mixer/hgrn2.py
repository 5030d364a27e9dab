"""Gated linear recurrence with an expanded state: forget gates are the keys (HGRN2, 2404.07904).

    S_t = diag(f_t) S_{t−1} + (1 − f_t) i_tᵀ,   o_t = S_tᵀ q_t                          (section 3)
    y   = W_o RMSNorm(o)                                                       over all heads
    f = γ + (1 − γ) σ(W_f x),   i = W_i x,   q = SiLU(W_q x)

(arXiv 2404.07904.) The recurrence is `ops.channels` with k = 1 − f: what a channel forgets makes
room for what it writes. γ is a lower bound of the forget gates that grows with depth, ℓ/L in the
logical layer ℓ = 0 … L−1.

In the paper and in public code, γ is the running sum of a softmax over learned numbers of all
layers, which begin equal: the same bounds ℓ/L at the start of training. A layer here knows no
parameters of other layers, so its bound stays; a layer may still forget more slowly. q has the name
o in the paper and is called an output gate there; it is divided by √k, as in public code, which
the norm hides. x [b t d]; q, f [b h t k]; i [b h t v]; state S [b h k v], k = v = d/h.
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
from chimera.ops import channels
from chimera.ops.precision import wide, widen


class HGRN2State(NamedTuple):
    """State S in float32 or wider."""

    memory: Float[Tensor, "b h k v"]


class HGRN2(Mixer):
    """Linear recurrence whose forget gates are tied to its keys (HGRN2).

    Args:
        heads: heads h; None for the model's number. A head of width d/h has (d/h)² numbers of
            state: fewer heads expand the state.
        lower_bound: forget gates of layer ℓ of L are at least ℓ/L; False for no bound.
        chunk: tokens in a chunk, a power of two; changes only speed.
    """

    component = "hgrn2"
    directions: ClassVar[frozenset[Direction]] = CAUSAL
    forms = ("parallel", "chunkwise", "recurrent")
    source = "arXiv 2404.07904"
    cost = "t·d·(d + k + chunk)"
    state_size = "d·k"

    def __init__(
        self,
        site: Site,
        parts: Parts,
        *,
        heads: PositiveInt | None = None,
        lower_bound: bool = True,
        chunk: PositiveInt = 64,
    ) -> None:
        super().__init__()
        h = self.heads = heads or site.heads
        if site.dim % h:
            raise ValueError(f"heads={h} does not divide the model width {site.dim}")
        self.head_dim = site.dim // h
        self.site = site
        self.lower_bound = lower_bound
        self.chunk = channels.chunk_size(chunk, chunk)
        self.q_proj, self.f_proj, self.i_proj = (
            parts.linear(site.dim, site.dim, bias=False, role=role)
            for role in ("qkv", "gate", "qkv")
        )
        self.norm = nn.Parameter(torch.ones(site.dim))
        self.o_proj = parts.linear(site.dim, site.dim, bias=False, role="out")

    def init_state(self, batch: int) -> HGRN2State:
        like, k = self.norm, self.head_dim
        return HGRN2State(like.new_zeros(batch, self.heads, k, k, dtype=wide(like)))

    def forward(self, x: Tensor, ctx: Context, state: HGRN2State | None = None) -> Out:
        q, f, i = (
            rearrange(proj(x), "b t (h k) -> b h t k", h=self.heads)
            for proj in (self.q_proj, self.f_proj, self.i_proj)
        )
        k, g = channels.masked(ctx.mask, *self._gates(widen(f), ctx.loop))
        q = F.silu(widen(q)) * self.head_dim**-0.5
        memory: Tensor | None
        if state is not None and x.shape[1] == 1:
            y, memory = channels.step(q, k, i, g, state.memory)
        else:
            before = None if state is None else state.memory
            y, memory = channels.chunkwise(q, k, i, g, before, chunk=self.chunk)
        y = rearrange(y, "b h t v -> b t (h v)")
        y = (F.rms_norm(y, y.shape[-1:], eps=1e-6) * self.norm).to(x.dtype)
        y = self.o_proj(y)
        return Out(y, None if memory is None else HGRN2State(memory))

    def _gates(self, f: Tensor, loop: int) -> tuple[Tensor, Tensor]:
        """Keys 1 − f and log-decays log f; both exact where σ is near 0 or 1."""
        low = self.site.logical(loop) / (self.site.depth * self.site.loops)
        if not self.lower_bound or low == 0:
            return f.neg().sigmoid(), F.logsigmoid(f)
        g = torch.logaddexp(f.new_tensor(math.log(low)), math.log1p(-low) + F.logsigmoid(f))
        return (1 - low) * f.neg().sigmoid(), g
