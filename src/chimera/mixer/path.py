"""PaTH attention: positions by accumulated Householder-like maps (arXiv 2505.16381).

    o_i = Σ_{j≤i} softmax_j(k_jᵀ (Π_{j<s≤i} H_s) q_i / √k) v_j,   H_t = I − β_t w_t w_tᵀ
    w = unit(SiLU(conv(W₂ W₁ x))),   β = 2 σ(W_β x + b_β),   y = W_o o        (section 2)

The maps depend on the tokens, unlike RoPE's rotations by distance: a layer can track a state, which
softmax attention with RoPE cannot. They replace positions that rotate. With fewer key heads than
query heads, a group of queries shares w and β. The product of maps is `ops.path`.

This is PaTH as in its public code (fla): w of rank 32 with three taps and SiLU, β up to 2. That
code has a full matrix for w with grouped heads (here low-rank), keeps w in float16 and rounds the
cached keys to the model's dtype after every token; here both are float32 or wider, as a key is
multiplied once per later token. Left out: PaTH-FoX, which adds the gate of `forgetting`. The cache
grows. x [b t d]; q [b h t k]; k, v, w [b g t k]; β [b g t].
"""

from __future__ import annotations

from typing import ClassVar, Literal, NamedTuple

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from chimera.contract import CAUSAL, Context, Direction, Hook, Out, Parts, PositiveInt, Site
from chimera.mixer.shared.gated import LowRank, ShortConv
from chimera.mixer.shared.softmax import SoftmaxMixer
from chimera.ops import path
from chimera.ops.attention import KVCache, allowed, within
from chimera.ops.delta import unit
from chimera.ops.precision import wide, widen


class PathState(NamedTuple):
    """Cache whose keys are as the last token sees them, and the last inputs of w's convolution."""

    cache: KVCache
    tail: Float[Tensor, "b tail gk"]


class Path(SoftmaxMixer):
    """Softmax attention with data-dependent Householder maps as positions (PaTH).

    Args:
        heads: query heads h; None for the model's number.
        kv_heads: key-value heads g, a divisor of h; None for h, `quarter` for h/4.
        rank: rank of the map to w.
        conv: taps of the causal convolution on w; 0 for none.
        bias: biases in the four projections (ignored by quantisers without biases).
        chunk: tokens in a chunk; changes only speed.
    """

    undecayed = ("beta_bias",)
    directions: ClassVar[frozenset[Direction]] = CAUSAL
    position_hooks: ClassVar[frozenset[Hook]] = frozenset({"embed", "bias"})
    forms = ("parallel", "chunkwise", "recurrent")
    source = "arXiv 2505.16381"
    state_size = "2·t·g·k + (conv−1)·g·k (the cache grows)"

    def __init__(
        self,
        site: Site,
        parts: Parts,
        *,
        heads: PositiveInt | None = None,
        kv_heads: PositiveInt | Literal["quarter"] | None = None,
        rank: PositiveInt = 32,
        conv: Literal[0, 2, 3, 4] = 3,
        bias: bool = False,
        chunk: PositiveInt = 64,
    ) -> None:
        super().__init__(site, parts, heads=heads, kv_heads=kv_heads, bias=bias)
        width = self.heads.g * self.head_dim
        self.chunk = chunk
        self.documents = not conv  # type: ignore[misc]  # the convolution reads across them
        self.w_proj = LowRank(parts.linear, site.dim, rank, width, bias=False)
        self.conv = ShortConv(width, conv)
        self.beta_proj = parts.linear(site.dim, self.heads.g, bias=False, role="gate")
        self.beta_bias = nn.Parameter(torch.zeros(self.heads.g))

    @property
    def torch_draws(self) -> str:
        """Where torch's generator draws dropout; see `contract.Mixer.torch_draws`."""
        return "the attention weights of mixer=path" if self.dropout else ""

    def init_state(self, batch: int) -> PathState:
        like, (g, k) = self.q_proj.weight, (self.heads.g, self.head_dim)
        cache = KVCache.empty(batch, g, k, k, like)
        keys = cache.k.to(wide(like))
        return PathState(cache._replace(k=keys), self.conv.init_tail(batch, like))

    def forward(self, x: Tensor, ctx: Context, state: PathState | None = None) -> Out:
        cache, tail = state or (None, None)
        q, k, v = self.project(x)
        w, tail = self.conv(self.w_proj(x), tail, ctx.mask)
        w = unit(rearrange(w, "b t (g k) -> b g t k", g=self.heads.g))
        beta = 2 * (widen(self.beta_proj(x)) + widen(self.beta_bias)).sigmoid().mT
        if ctx.mask is not None:
            beta = beta.masked_fill(~ctx.mask[:, None], 0)
        past, pos_k, mask = None, ctx.pos, ctx.mask
        if cache is not None:
            past = cache.k
            cache = cache.joined(k, v, ctx.pos, ctx.mask)
            _, v, pos_k, mask = cache
        out = path.attend(
            widen(q) * self.head_dim**-0.5,
            k,
            v,
            w,
            beta,
            past,
            visible=self._seen(ctx, x.shape[1], v.shape[2], mask),
            bias=self.position.bias(ctx.pos, pos_k),
            dropout=self._dropout(),
            chunk=self.chunk,
        )
        y = self.output(out.y.to(x.dtype))
        return Out(y, None if cache is None else PathState(cache._replace(k=out.keys), tail))

    def _seen(self, ctx: Context, t: int, s: int, mask: Tensor | None) -> Tensor:
        """Attention mask [b 1 t s] by padding, direction and documents."""
        visible = allowed(t, s, mask, causal=True, device=ctx.pos.device)
        if visible is None:  # one token, no padding
            visible = torch.ones(1, 1, t, s, dtype=torch.bool, device=ctx.pos.device)
        return visible if ctx.documents is None or s > t else within(ctx.documents, visible)
