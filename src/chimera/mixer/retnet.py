"""Multi-scale retention (SPEC M6; TITAN 4.2, eq. 23-25; RetNet, arXiv 2307.08621).

    O_h = (Q K'ᵀ ⊙ D_h) V,   D_h[n, m] = γ_h^(n−m) for m ≤ n, else 0      (causal)
                             D_h[n, m] = γ_h^|n−m|                        (bidirectional)
    S_t = γ_h S_{t−1} + k'_t v_tᵀ,   o_t = S_tᵀ q_t                       (the same, recurrent)
    y   = W_o (SiLU(x W_g) ⊙ RMS_h(O_h))

with q and k' = k/√k rotated by θ_i = 10000^(−i/(k/2−1)) in interleaved pairs. RMS_h is a norm over
each head without parameters. A position encoding with rotation (rope, hope) replaces RetNet's
rotation, so that queries and keys are rotated exactly once.

Decay rules, h = 0 … H−1:  titan γ_h = 1 − 2^−(5 + 7h/H),  retnet γ_h = 1 − 2^−(5 + h).
TITAN 2.9 lets the decay vary with depth but gives no formula. This code adds `depth_shift`·ℓ/(L−1)
to the exponent, with the logical layer ℓ = 0 … L−1 of the unrolled stack: with a positive shift,
deeper layers decay more slowly.

RetNet's three score normalisations (1/√Σ D, clamped row sums, and so on) are omitted: they only
scale a head's row, and RMS_h removes the scale. A padded token adds nothing and causes no decay.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, NamedTuple

import torch
import torch.nn.functional as F
from annotated_types import Gt
from jaxtyping import Float
from torch import Tensor

from chimera.contract import Context, Hook, Mixer, Out, Parts, PositiveFloat, PositiveInt, Site
from chimera.ops import decay
from chimera.ops.precision import wide
from chimera.ops.rotary import phases, turn
from chimera.ops.together import few_kernels, together


class RetentionState(NamedTuple):
    """Recurrent state: one matrix per head."""

    s: Float[Tensor, "b h k v"]


class Retention(Mixer):
    """Multi-scale retention (RetNet): linear attention with one constant decay per head.

    Args:
        heads: heads H, with one decay each; None for half of the model's, as in TITAN Table 1 (16
            and 8), because only the key width distinguishes positions.
        decay: rule for γ_h: titan (TITAN eq. 25) or retnet.
        depth_shift: increase of the exponent of γ from the first to the last logical layer, above
            −5, where γ of the first head is 0.
        value_expand: width of the values as a multiple of d (RetNet uses 2).
        form: parallel (cost t²), chunkwise (cost t), or auto: parallel up to two chunks, for which
            it is faster (measured on a CPU).
        chunk_size: tokens per chunk of the chunkwise form.
        eps: ε of the norm over each head.
    """

    component = "retnet"
    position_hooks: ClassVar[frozenset[Hook]] = frozenset({"embed", "rotate"})
    forms = ("parallel", "chunkwise", "recurrent")
    source = "M6; arXiv 2307.08621"
    cost = "t·d·(chunk + k)"
    state_size = "d·v"

    def __init__(
        self,
        site: Site,
        parts: Parts,
        *,
        heads: PositiveInt | None = None,
        decay: Literal["titan", "retnet"] = "titan",
        depth_shift: Annotated[float, Gt(-5)] = 0.0,
        value_expand: PositiveInt = 1,
        form: Literal["auto", "parallel", "chunkwise"] = "auto",
        chunk_size: PositiveInt = 64,
        eps: PositiveFloat = 1e-6,
    ) -> None:
        super().__init__()
        h = self.heads = heads or max(1, site.heads // 2)
        if site.dim % (2 * h):
            raise ValueError(
                f"heads={h}: retention rotates pairs, so the model width {site.dim}"
                f" must be a multiple of 2·heads={2 * h}"
            )
        self.site = site
        self.rule = decay
        self.depth_shift = depth_shift
        self.form = form
        self.chunk_size = chunk_size
        self.eps = eps
        self.k_dim = site.dim // h
        self.v_dim = value_expand * site.dim // h
        self.q_proj = parts.linear(site.dim, site.dim, bias=False, role="qkv")
        self.k_proj = parts.linear(site.dim, site.dim, bias=False, role="qkv")
        self.v_proj = parts.linear(site.dim, h * self.v_dim, bias=False, role="qkv")
        self.g_proj = parts.linear(site.dim, h * self.v_dim, bias=False, role="gate")
        self.o_proj = parts.linear(h * self.v_dim, site.dim, bias=False, role="out")
        self.position = parts.position(site, h, self.k_dim)
        if self.position.in_mixer:  # its only parameter is a radius, whose effect RMS_h removes
            self.position.requires_grad_(requires_grad=False)

    def log_decay(self, loop: int, like: Tensor) -> Float[Tensor, " h"]:
        """log γ of each head in this layer, in traversal `loop` of the stack."""
        dtype = wide(like)
        rank = torch.arange(self.heads, device=like.device, dtype=dtype)
        last = max(self.site.depth * self.site.loops - 1, 1)
        shift = self.depth_shift and self.depth_shift * self.site.logical(loop) / last
        slope = 7 / self.heads if self.rule == "titan" else 1
        return torch.log1p(-torch.exp2(-(5 + shift + slope * rank)))

    def init_state(self, batch: int) -> RetentionState:
        if not self.site.causal:
            raise ValueError("mixer=retnet has no state in an encoder: decode with a causal model")
        like = self.q_proj.weight
        dtype = wide(like)
        return RetentionState(
            like.new_zeros(batch, self.heads, self.k_dim, self.v_dim, dtype=dtype)
        )

    def forward(self, x: Tensor, ctx: Context, state: RetentionState | None = None) -> Out:
        *parts, gate = together(x, self.q_proj, self.k_proj, self.v_proj, self.g_proj)
        q, k, v = (y.unflatten(2, (self.heads, -1)).transpose(1, 2) for y in parts)
        if not few_kernels(x):  # a CPU's products of heads are faster
            q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
        q, k = self._rotated(q, k, ctx)
        layer = self.depth_shift and (self.depth_shift, self.site.logical(ctx.loop))  # 0: all equal
        once = f"retnet {self.heads} {self.rule} {layer} {wide(q)}"
        k, g = decay.masked(k, ctx.cached(once, lambda: self.log_decay(ctx.loop, q)), ctx.mask)
        y, s = self._retention(q, k, v, g, None if state is None else state.s)
        y = F.rms_norm(y, (self.v_dim,), eps=self.eps)
        y = (y.transpose(1, 2).flatten(2) * F.silu(gate)).to(x.dtype)
        y = self.o_proj(y)
        return Out(y, None if s is None else RetentionState(s))

    def _rotated(self, q: Tensor, k: Tensor, ctx: Context) -> tuple[Tensor, Tensor]:
        scale = self.k_dim**-0.5
        if "rotate" in self.position.provides:
            q, k = self.position.rotate(q, k, ctx.pos)
            return q, k * scale
        half, once = self.k_dim // 2, f"retnet {self.k_dim} {wide(q)}"
        phase = ctx.cached(once, lambda: phases(ctx.pos, half, 10000.0, like=q, inclusive=True))
        return turn(q, phase), turn(k, phase * scale)

    def _retention(
        self, q: Tensor, k: Tensor, v: Tensor, g: decay.Decay, state: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        tokens, causal = q.shape[2], self.site.causal
        if state is not None and tokens == 1:
            return decay.step(q, k, v, g, state)
        short = self.form == "auto" and tokens <= 2 * self.chunk_size
        chunk = tokens if short or self.form == "parallel" else self.chunk_size
        return decay.chunkwise(q, k, v, g, state, causal=causal, chunk=chunk)
