"""Multi-head latent attention: keys and values from a small cached vector (arXiv 2405.04434).

    c = RMSNorm(W_dkv x),   k_r = R W_kr x                         cached: c and k_r, of all heads
    [k_n; v]_h = W_ukv c,   [q_n; q_r]_h = W_q x,   q_r ← R q_r
    O_h = softmax((q_n·k_n + q_r·k_r)/√(n + r)) v,   y = W_o O            (eq. 9–19, 37–47)

R is the rotation of the chosen position encoding, on r of a head's n + r channels; the key k_r is
one for all heads. Without a rotation (position=none) k_r is a plain shared key, as in Kimi Linear.

The paper also compresses queries, in training only; `query_rank` does so. The published code
multiplies W_ukv into q and W_o when it decodes. This code expands the cache instead, for the same
numbers under any quantiser: a step costs t·rank·d more products, and the cache stays small.
c [b t rank]; q_n, k_n, v [b h t n]; q_r [b h t r], k_r [b 1 t r].
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from chimera.contract import Context, Hook, Mixer, Out, Parts, PositiveInt, Site
from chimera.ops.attention import KVCache, allowed, attend, within
from chimera.ops.precision import widen

EPS = 1e-6


class LatentAttention(Mixer):
    """Softmax attention whose keys and values come from a small cached vector (MLA).

    Args:
        heads: heads h; None for the model's number.
        rank: width of the cached vector c; None for four heads.
        rotated: channels r of a head with a rotated, shared key; None for half a head.
        query_rank: width of compressed queries; None for none.
    """

    component = "attention"
    position_hooks: ClassVar[frozenset[Hook]] = frozenset({"embed", "rotate", "bias"})
    forms = ("parallel", "recurrent")
    documents = True
    source = "arXiv 2405.04434"
    cost = "t²·d"
    state_size = "t·(rank + r) (the cache grows)"

    def __init__(
        self,
        site: Site,
        parts: Parts,
        *,
        heads: PositiveInt | None = None,
        rank: PositiveInt | None = None,
        rotated: PositiveInt | None = None,
        query_rank: PositiveInt | None = None,
    ) -> None:
        super().__init__()
        h = self.heads = heads or site.heads
        if site.dim % h:
            raise ValueError(f"heads={h} does not divide the model width {site.dim}")
        n = self.head_dim = site.dim // h
        r = self.rotated = rotated or max(2, n // 4 * 2)
        self.rank = rank or 4 * n
        self.causal = site.causal
        self.dropout = site.dropout

        def linear(d_in: int, d_out: int) -> Any:
            return parts.linear(d_in, d_out, bias=False, role="qkv")

        self.q_down = linear(site.dim, query_rank) if query_rank else None
        self.q_norm = nn.Parameter(torch.ones(query_rank)) if query_rank else None
        self.q_proj = linear(query_rank or site.dim, h * (n + r))
        self.kv_down = linear(site.dim, self.rank + r)
        self.kv_norm = nn.Parameter(torch.ones(self.rank))
        self.kv_proj = linear(self.rank, 2 * h * n)
        self.o_proj = parts.linear(h * n, site.dim, bias=False, role="out")
        self.position = parts.position(site, h, r)

    @property
    def torch_draws(self) -> str:
        """Where torch's generator draws dropout; see `contract.Mixer.torch_draws`."""
        return "scaled_dot_product_attention" if self.dropout else ""

    def init_state(self, batch: int) -> KVCache:
        return KVCache.empty(batch, 1, self.rank, self.rotated, self.kv_norm)

    def forward(self, x: Tensor, ctx: Context, state: KVCache | None = None) -> Out:
        queries = x
        if self.q_down is not None and self.q_norm is not None:
            queries = _normed(self.q_down(x), self.q_norm)
        q = rearrange(self.q_proj(queries), "b t (h k) -> b h t k", h=self.heads)
        q, q_r = q.split((self.head_dim, self.rotated), -1)
        c, k_r = self.kv_down(x)[:, None].split((self.rank, self.rotated), -1)
        q_r, k_r = self.position.rotate(q_r, k_r, ctx.pos)
        c, pos_k, mask, visible = _normed(c, self.kv_norm), ctx.pos, ctx.mask, None
        if state is not None:
            state = state.extend(c, k_r, ctx.pos, mask)
            c, k_r, pos_k, mask = state
            mask = None if state.unpadded else mask
        elif mask is not None or ctx.documents is not None:
            visible = ctx.cached(f"allowed {self.causal}", lambda: self._visible(ctx))
        kv = rearrange(self.kv_proj(c.to(x.dtype)), "b 1 s (h k) -> b h s k", h=self.heads)
        k, v = kv.chunk(2, -1)
        y = attend(
            torch.cat([q, q_r.to(q.dtype)], -1),
            torch.cat([k, k_r.to(k.dtype).expand(-1, self.heads, -1, -1)], -1),
            v,
            mask=mask,
            bias=self.position.bias(ctx.pos, pos_k),
            causal=self.causal,
            dropout=self.dropout if self.training else 0.0,
            visible=visible,
        )
        return Out(self.o_proj(rearrange(y, "b h t v -> b t (h v)")), state)

    def _visible(self, ctx: Context) -> Tensor | None:
        """Attention mask [b 1 t t] by padding, direction and documents."""
        t, device = ctx.pos.shape[1], ctx.pos.device
        visible = allowed(t, t, ctx.mask, causal=self.causal, device=device)
        return visible if ctx.documents is None else within(ctx.documents, visible)


def _normed(x: Tensor, weight: Tensor) -> Tensor:
    """RMSNorm over the last axis, in float32 or wider."""
    return (F.rms_norm(widen(x), weight.shape, eps=EPS) * weight).to(x.dtype)
