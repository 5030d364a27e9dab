"""Softmax attention with padding, position bias and a key-value cache.

    O = softmax(Q Kᵀ / √k + bias) V                                  (TITAN eq. 33, SAIDL 2.2)

computed by torch's fused `scaled_dot_product_attention`; keys and values may have fewer heads than
queries (GQA, arXiv 2305.13245).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor


class KVCache(NamedTuple):
    """What attention keeps per sequence: `g` key-value heads, s tokens so far."""

    k: Float[Tensor, "b g s k"]
    v: Float[Tensor, "b g s v"]
    pos: Int[Tensor, "b s"]
    mask: Bool[Tensor, "b s"]

    @staticmethod
    def empty(batch: int, heads: int, k: int, v: int, like: Tensor) -> KVCache:
        """A cache of no tokens, in the dtype and on the device of `like`."""
        none = torch.empty(batch, 0, dtype=torch.long, device=like.device)
        return KVCache(
            like.new_empty(batch, heads, 0, k),
            like.new_empty(batch, heads, 0, v),
            none,
            none.bool(),
        )

    def extend(self, k: Tensor, v: Tensor, pos: Tensor, mask: Tensor | None) -> KVCache:
        """The cache with t more tokens; `pos` [b|1 t], `mask` [b t] or None."""
        batch, tokens = k.shape[0], k.shape[2]
        if mask is None:
            mask = torch.ones(batch, tokens, dtype=torch.bool, device=k.device)
        return KVCache(
            torch.cat([self.k, k.to(self.k.dtype)], 2),
            torch.cat([self.v, v.to(self.v.dtype)], 2),
            torch.cat([self.pos, pos.expand(batch, -1)], 1),
            torch.cat([self.mask, mask], 1),
        )


@dataclass(frozen=True)
class Heads:
    """`h` query heads and `g` key-value heads of one width."""

    h: int
    g: int

    def __post_init__(self) -> None:
        if self.h % self.g:
            raise ValueError(f"kv_heads={self.g} does not divide heads={self.h}")

    @staticmethod
    def of(h: int, kv_heads: int | Literal["quarter"] | None) -> Heads:
        """`quarter` is h/4, at least 1: TITAN's 4 groups of 16 heads, at any size."""
        return Heads(h, max(1, h // 4) if kv_heads == "quarter" else kv_heads or h)

    def split(self, x: Float[Tensor, "b t d"], heads: int) -> Float[Tensor, "b h t k"]:
        return rearrange(x, "b t (h k) -> b h t k", h=heads)


def allowed(
    t: int, s: int, mask: Bool[Tensor, "b s"] | None, *, causal: bool, device: torch.device
) -> Bool[Tensor, "b 1 t s"] | None:
    """True where query i of the last t tokens may look at key j of s; None if everywhere.

    A query always may look at itself: a row of padding would otherwise have nothing to attend to
    and its softmax would be NaN. Nobody looks at what such a row yields.
    """
    if mask is None and not (causal and t > 1):
        return None
    own = torch.arange(s - t, s, device=device)[:, None]
    keys = torch.arange(s, device=device)[None, :]
    seen = keys <= own if causal else torch.ones(t, s, dtype=torch.bool, device=device)
    if mask is None:
        return seen[None, None]
    return (seen & mask[:, None, :] | (keys == own))[:, None]


def attend(
    q: Float[Tensor, "b h t k"],
    k: Float[Tensor, "b g s k"],
    v: Float[Tensor, "b g s v"],
    *,
    mask: Bool[Tensor, "b s"] | None = None,
    bias: Float[Tensor, "#b h t s"] | None = None,
    causal: bool = False,
    dropout: float = 0.0,
) -> Float[Tensor, "b h t v"]:
    """Softmax attention of the last t of s tokens on all s; `bias` is added to the scores."""
    t, s = q.shape[2], k.shape[2]
    grouped = q.shape[1] != k.shape[1]
    if mask is None and bias is None and (t == s or not causal):
        return F.scaled_dot_product_attention(
            q, k, v, is_causal=causal and t > 1, dropout_p=dropout, enable_gqa=grouped
        )
    where = allowed(t, s, mask, causal=causal, device=q.device)
    if bias is not None and where is not None:
        where = bias.masked_fill(~where, float("-inf"))
    elif bias is not None:
        where = bias
    if where is not None and where.is_floating_point():
        where = where.to(q.dtype)
    return F.scaled_dot_product_attention(
        q, k, v, attn_mask=where, dropout_p=dropout, enable_gqa=grouped
    )
