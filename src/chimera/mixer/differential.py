"""Differential attention: the difference of two softmax maps (arXiv 2410.05258).

    O = (softmax(Q₁ K₁ᵀ/√k) − λ softmax(Q₂ K₂ᵀ/√k)) V                                (eq. 1)
    λ = exp(λ_q1·λ_k1) − exp(λ_q2·λ_k2) + λ₀,   λ₀ = 0.8 − 0.6 exp(−0.3 (l − 1))     (eq. 2)
    y = W_o ((1 − λ₀) RMSNorm(O))                                       per head of 2k (eq. 3)

in the logical layer l = 1 … L. A head has two queries and two keys of width k and values of width
2k, so that h heads with 2·h·k = d have as many weights as 2h heads of softmax attention. What both
maps give to irrelevant tokens cancels.

Public codes differ in two points, and this is the authors': the two maps of a head are adjacent in
W_q and W_k (transformers has all first maps, then all second ones), and the norm has a learned
scale (transformers has none; W_o can take it in). q, k [b 2h t k]; v [b h t 2k].
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from chimera.contract import Context, Out, Parts, PositiveInt, Site
from chimera.mixer.shared.softmax import SoftmaxMixer
from chimera.ops.attention import KVCache, attend
from chimera.ops.precision import widen

EPS = 1e-5


class Differential(SoftmaxMixer):
    """Difference of two softmax attention maps, whose noise cancels.

    Args:
        heads: heads h; None for half the model's number.
        bias: biases in the four projections (ignored by quantisers without biases).
    """

    undecayed = ("lambdas",)
    documents = True
    source = "arXiv 2410.05258"
    state_size = "2·t·d (the cache grows)"

    def __init__(
        self, site: Site, parts: Parts, *, heads: PositiveInt | None = None, bias: bool = False
    ) -> None:
        h = heads or max(1, site.heads // 2)
        super().__init__(site, parts, heads=2 * h, kv_heads=None, bias=bias)
        self.site = site
        #: λ_q1, λ_k1, λ_q2, λ_k2, shared by the heads.
        self.lambdas = nn.Parameter(torch.empty(4, self.head_dim).normal_(std=0.1))
        self.norm = nn.Parameter(torch.ones(2 * self.head_dim))

    def init_state(self, batch: int) -> KVCache:
        like, width = self.q_proj.weight, 2 * self.head_dim
        return KVCache.empty(batch, self.heads.h // 2, width, width, like)

    def forward(self, x: Tensor, ctx: Context, state: KVCache | None = None) -> Out:
        q, k, v = self.project(x)
        q, k = self.position.rotate(q, k, ctx.pos)
        k, v = (rearrange(y, "b (h n) t k -> b h t (n k)", n=2) for y in (k, v))
        pos_k, mask, visible = ctx.pos, ctx.mask, None
        if state is not None:
            state = state.extend(k, v, ctx.pos, mask)
            k, v, pos_k, mask = state
            mask = None if state.unpadded else mask
        elif mask is not None or ctx.documents is not None:
            visible = ctx.cached(f"allowed {self.causal}", lambda: self._visible(ctx))
        y = attend(
            q,
            rearrange(k, "b h s (n k) -> b (h n) s k", n=2),
            v.repeat_interleave(2, 1),
            mask=mask,
            bias=self.position.bias(ctx.pos, pos_k),
            causal=self.causal,
            dropout=self._dropout(),
            visible=visible,
        )
        return Out(self.output(self._difference(y, ctx.loop).to(x.dtype)), state)

    def _difference(self, y: Float[Tensor, "b m t v"], loop: int) -> Float[Tensor, "b h t v"]:
        """(1 − λ₀) RMSNorm of the first map's output minus λ times the second's, m = 2h."""
        base = 0.8 - 0.6 * math.exp(-0.3 * self.site.logical(loop))
        q1, k1, q2, k2 = widen(self.lambdas)
        scale = (q1 * k1).sum().exp() - (q2 * k2).sum().exp() + base
        first, second = widen(y).unflatten(1, (-1, 2)).unbind(2)
        y = F.rms_norm(first - scale * second, self.norm.shape, eps=EPS)
        return (1 - base) * y * self.norm
