"""Gated DeltaNet: delta rule with a decay per token and head (arXiv 2412.06464).

    S_t = S_{t−1} (α_t (I − β_t k_t k_tᵀ)) + β_t v_t k_tᵀ,   o_t = S_t q_t                  (eq. 10)
    y   = W_o (RMSNorm(o) ⊙ SiLU(W_z x))                                   per head         (fig. 1)
    q = unit(SiLU(conv(W_q x)))/√k,  k = unit(SiLU(conv(W_k x))),  v = SiLU(conv(W_v x))
    β = σ(W_β x), or 2σ(W_β x),  α = exp(−exp(A_log) softplus(W_α x + dt_bias))

The recurrence is `ops.delta` with one step per token; its h is Sᵀ. Widths are those of the
authors' models: keys 3/4·d, values 3/2·d over all heads, 6·d² weights. With fewer key heads than
value heads (Qwen3-Next), adjacent value heads share a query and a key.

Paper and public code agree in the equations. Three details are in the code only; this is the code:
q is divided by √k (before a norm, which hides it except for the norm's ε), the convolution has four
taps and no bias, and the decay starts as Mamba-2's. One detail is ours: the public code divides by
√(‖k‖² + 1e-6), this by max(‖k‖, 1e-6). Keys of norm 0.1 differ by 5e-5 of their length; keys of
norm 0.001 are 0.7 long there and 1 long here. x [b t d]; q, k [b h t k]; v [b h t v].
"""

from __future__ import annotations

from typing import ClassVar, Literal, NamedTuple

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
from chimera.mixer.shared.gated import DecayGate, GatedNorm, ShortConv
from chimera.mixer.shared.of_transformers import OfQwen3Next
from chimera.ops import delta
from chimera.ops.precision import wide
from chimera.ops.together import together


class GatedDeltaState(NamedTuple):
    """State Sᵀ in float32 or wider, and the last inputs of the convolution of [q; k; v]."""

    memory: Float[Tensor, "b h k v"]
    tail: Float[Tensor, "b tail qkv"]


class GatedDelta(OfQwen3Next, Mixer):
    """Matrix memory that decays and takes one delta-rule update per token (Gated DeltaNet).

    Args:
        heads: value heads h, one state each; None for the model's number.
        key_heads: heads of queries and keys, a divisor of h; None for h.
        key_expand: width of a head's key times h, as a multiple of d.
        value_expand: width of the values of all heads as a multiple of d.
        negative_eigenvalues: β up to 2 instead of 1.
        conv: taps of the causal convolution on q, k and v; 0 for none.
    """

    component = "gated_delta"
    directions: ClassVar[frozenset[Direction]] = CAUSAL
    forms = ("parallel", "chunkwise", "recurrent")
    source = "arXiv 2412.06464"
    cost = "t·(d + k + 64)·d"
    state_size = "h·k·v + (conv−1)·(2·h·k + h·v)"

    def __init__(
        self,
        site: Site,
        parts: Parts,
        *,
        heads: PositiveInt | None = None,
        key_heads: PositiveInt | None = None,
        key_expand: PositiveFloat = 0.75,
        value_expand: PositiveFloat = 1.5,
        negative_eigenvalues: bool = False,
        conv: Literal[0, 2, 3, 4] = 4,
    ) -> None:
        super().__init__()
        h = self.heads = heads or site.heads
        self.key_heads = key_heads or h
        if h % self.key_heads:
            raise ValueError(
                f"key_heads={key_heads} of mixer=gated_delta does not divide {h} heads"
            )
        k, v = (x * site.dim / h for x in (key_expand, value_expand))
        if not (k.is_integer() and v.is_integer()):
            raise ValueError(
                f"mixer=gated_delta with {h} heads of width {site.dim}: key_expand={key_expand} and"
                f" value_expand={value_expand} give heads of {k:g} and {v:g}, no whole numbers"
            )
        self.k_dim = int(k)
        self.v_dim = int(v)
        keys, values = self.key_heads * self.k_dim, h * self.v_dim
        self.widths = (keys, keys, values)
        self.max_beta = 2.0 if negative_eigenvalues else 1.0
        self.q_proj, self.k_proj, self.v_proj = (
            parts.linear(site.dim, width, bias=False, role="qkv") for width in self.widths
        )
        self.z_proj = parts.linear(site.dim, values, bias=False, role="gate")
        self.beta_proj = parts.linear(site.dim, h, bias=False, role="gate")
        self.decay_proj = parts.linear(site.dim, h, bias=False, role="gate")
        self.conv = ShortConv(sum(self.widths), conv)
        self.decay = DecayGate(h)
        self.norm = GatedNorm(self.v_dim, gate="silu")
        self.o_proj = parts.linear(values, site.dim, bias=False, role="out")

    def init_state(self, batch: int) -> GatedDeltaState:
        like = self.q_proj.weight
        memory = like.new_zeros(batch, self.heads, self.k_dim, self.v_dim, dtype=wide(like))
        return GatedDeltaState(memory, self.conv.init_tail(batch, like))

    def forward(self, x: Tensor, ctx: Context, state: GatedDeltaState | None = None) -> Out:
        memory, tail = state or (None, None)
        qkv = self.q_proj, self.k_proj, self.v_proj
        mixed, beta, slow, z = together(x, qkv, self.beta_proj, self.decay_proj, self.z_proj)
        mixed, tail = self.conv(mixed, tail, ctx.mask)
        q, k, v = mixed.split(self.widths, -1)
        q, k = (self._keys(y) for y in (q, k))
        q, v = q * self.k_dim**-0.5, rearrange(v, "b t (h v) -> b h t 1 v", h=self.heads)
        beta = rearrange(beta.to(q.dtype), "b t h -> b h t 1 1")
        g = rearrange(self.decay(slow), "b t h -> b h t")
        beta, g = delta.masked(self.max_beta * beta.sigmoid(), g, ctx.mask)
        if memory is not None and x.shape[1] == 1:
            y, memory = delta.step(q, k[:, :, :, None], v, beta, g, memory)
        else:
            y, memory = delta.chunkwise(q, k[:, :, :, None], v, beta, g, memory)
        z = rearrange(z, "b t (h v) -> b t h v", h=self.heads)
        y = self.norm(rearrange(y, "b h t v -> b t h v"), z).flatten(2).to(x.dtype)
        y = self.o_proj(y)
        return Out(y, None if memory is None else GatedDeltaState(memory, tail))

    def _keys(self, x: Float[Tensor, "b t k"]) -> Float[Tensor, "b h t k"]:
        """Heads of unit length, each repeated for the value heads that share it."""
        heads = delta.unit(rearrange(x, "b t (h k) -> b h t k", h=self.key_heads))
        return heads.repeat_interleave(self.heads // self.key_heads, 1)
