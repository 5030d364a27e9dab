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


class _Kept(NamedTuple):
    k: Float[Tensor, "b g s k"]
    v: Float[Tensor, "b g s v"]
    pos: Int[Tensor, "b s"]
    mask: Bool[Tensor, "b s"]


class _Room:
    """Buffers that a cache is the beginning of, and how many of their places are taken."""

    def __init__(self, buffers: tuple[Tensor, ...], taken: int) -> None:
        self.buffers, self.taken = buffers, taken


class KVCache(_Kept):
    """What attention keeps per sequence: `g` key-value heads, s tokens so far.

    Without gradients it is the beginning of buffers with places to spare, so that a token is
    written and nothing is copied. A cache never changes: only the one that ends where the buffers'
    taken places end writes on, and any other, such as a second continuation of one text, copies.
    """

    _room: _Room | None = None

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
        if torch.is_grad_enabled():
            return self.joined(k, v, pos, mask)
        start, end = self.pos.shape[1], self.pos.shape[1] + pos.shape[1]
        room = self._room
        if room is None or room.taken != start or end > room.buffers[2].shape[1]:
            room = self._with_room(end)
        for buffer, dim, new in zip(room.buffers, _ALONG, (k, v, pos, mask), strict=True):
            place = buffer.narrow(dim, start, end - start)
            place.fill_(True) if new is None else place.copy_(new)
        room.taken = end
        cut = (b.narrow(dim, 0, end) for b, dim in zip(room.buffers, _ALONG, strict=True))
        longer = KVCache(*cut)
        longer._room = room
        return longer

    def joined(self, k: Tensor, v: Tensor, pos: Tensor, mask: Tensor | None) -> KVCache:
        """The same in tensors of its own, with no place to spare."""
        batch, tokens = k.shape[0], k.shape[2]
        if mask is None:
            mask = torch.ones(batch, tokens, dtype=torch.bool, device=k.device)
        return KVCache(
            torch.cat([self.k, k.to(self.k.dtype)], 2),
            torch.cat([self.v, v.to(self.v.dtype)], 2),
            torch.cat([self.pos, pos.expand(batch, -1)], 1),
            torch.cat([self.mask, mask], 1),
        )

    def _with_room(self, tokens: int) -> _Room:
        """A copy for `tokens` and an eighth more: eight places copied per token in the long run."""
        places, buffers = tokens + max(64, tokens // 8), []
        for old, dim in zip(self, _ALONG, strict=True):
            shape = list(old.shape)
            shape[dim] = places
            buffers.append(old.new_zeros(shape))
            buffers[-1].narrow(dim, 0, old.shape[dim]).copy_(old)
        return _Room(tuple(buffers), self.pos.shape[1])


#: The axis of tokens of k, v, pos and mask.
_ALONG = (2, 2, 1, 1)


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
    t, s, g = q.shape[2], k.shape[2], k.shape[1]
    grouped = q.shape[1] != g
    if mask is None and bias is None and t == s:
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
    if grouped and t == 1:
        # A decoding step reads each head of keys once, for all queries of its group at a time.
        if where is not None and where.shape[1] > 1:
            where = rearrange(where, "b (g r) 1 s -> b g r s", g=g)
        q = rearrange(q, "b (g r) 1 k -> b g r k", g=g)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=where, dropout_p=dropout)
        return rearrange(y, "b g r v -> b (g r) 1 v")
    return F.scaled_dot_product_attention(
        q, k, v, attn_mask=where, dropout_p=dropout, enable_gqa=grouped
    )
