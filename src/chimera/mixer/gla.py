"""Gated linear attention: a decay per channel of the keys (GLA, arXiv 2312.06635).

    S_t = diag(α_t) S_{t−1} + k_t v_tᵀ,   o_t = S_tᵀ q_t                             (eq. 3)
    y   = W_o (RMSNorm(o) ⊙ SiLU(W_r x))                                    per head, section 4.4
    q = W_q x/√k,   k = W_k x,   v = W_v x,   α = σ(W₂ W₁ x + b)^(1/τ)

The recurrence is `ops.channels`. Widths and τ are the paper's: keys d/2, values d, rank 16, τ 16.
The paper has LayerNorm without bias per head and a bias in W_r; the authors' public layers have
RMSNorm and no bias, and so has this: a norm without centring keeps the mean of a head's channels.
x [b t d]; q, k, log α [b h t k]; v [b h t v]; state S [b h k v].
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from chimera.contract import (
    CAUSAL,
    Context,
    Direction,
    Mixer,
    Out,
    Parts,
    PositiveFloat,
    PositiveInt,
    Site,
)
from chimera.mixer.shared.gated import GatedNorm, LowRank
from chimera.ops import channels
from chimera.ops.precision import wide, widen


class GLAState(NamedTuple):
    """State S in float32 or wider."""

    memory: Float[Tensor, "b h k v"]


class GatedLinear(Mixer):
    """Linear attention with a learned decay of each key channel (GLA).

    Args:
        heads: heads h; None for the model's number.
        key_expand: width of the keys of all heads as a multiple of d.
        value_expand: width of the values of all heads as a multiple of d.
        gate_rank: rank of the map to the decay.
        temperature: τ; larger values start with slower decay.
        chunk: tokens in a chunk, a power of two; changes only speed.
    """

    component = "gla"
    directions: ClassVar[frozenset[Direction]] = CAUSAL
    forms = ("parallel", "chunkwise", "recurrent")
    source = "arXiv 2312.06635"
    cost = "t·d·(d + k + chunk)"
    state_size = "h·k·v"

    def __init__(
        self,
        site: Site,
        parts: Parts,
        *,
        heads: PositiveInt | None = None,
        key_expand: PositiveFloat = 0.5,
        value_expand: PositiveFloat = 1.0,
        gate_rank: PositiveInt = 16,
        temperature: PositiveFloat = 16.0,
        chunk: PositiveInt = 64,
    ) -> None:
        super().__init__()
        h = self.heads = heads or site.heads
        k, v = (x * site.dim / h for x in (key_expand, value_expand))
        if not (k.is_integer() and v.is_integer()):
            raise ValueError(
                f"mixer=gla with {h} heads of width {site.dim}: key_expand={key_expand} and"
                f" value_expand={value_expand} give heads of {k:g} and {v:g}, no whole numbers"
            )
        self.k_dim = int(k)
        self.v_dim = int(v)
        keys, values = h * self.k_dim, h * self.v_dim
        self.temperature = temperature
        self.chunk = channels.chunk_size(chunk, chunk)
        self.q_proj = parts.linear(site.dim, keys, bias=False, role="qkv")
        self.k_proj = parts.linear(site.dim, keys, bias=False, role="qkv")
        self.v_proj = parts.linear(site.dim, values, bias=False, role="qkv")
        self.r_proj = parts.linear(site.dim, values, bias=False, role="gate")
        self.decay = LowRank(parts.linear, site.dim, gate_rank, keys, bias=True)
        self.norm = GatedNorm(self.v_dim, gate="silu")
        self.o_proj = parts.linear(values, site.dim, bias=False, role="out")

    def init_state(self, batch: int) -> GLAState:
        like = self.q_proj.weight
        shape = (batch, self.heads, self.k_dim, self.v_dim)
        return GLAState(like.new_zeros(shape, dtype=wide(like)))

    def forward(self, x: Tensor, ctx: Context, state: GLAState | None = None) -> Out:
        split = "b t (h k) -> b h t k"
        q, k, v, a = (
            rearrange(proj(x), split, h=self.heads)
            for proj in (self.q_proj, self.k_proj, self.v_proj, self.decay)
        )
        k, g = channels.masked(ctx.mask, k, F.logsigmoid(widen(a)) / self.temperature)
        q = widen(q) * self.k_dim**-0.5
        memory: Tensor | None
        if state is not None and x.shape[1] == 1:
            y, memory = channels.step(q, k, v, g, state.memory)
        else:
            before = None if state is None else state.memory
            y, memory = channels.chunkwise(q, k, v, g, before, chunk=self.chunk)
        r = rearrange(self.r_proj(x), "b t (h v) -> b t h v", h=self.heads)
        y = self.norm(rearrange(y, "b h t v -> b t h v"), r).flatten(2).to(x.dtype)
        y = self.o_proj(y)
        return Out(y, None if memory is None else GLAState(memory))
