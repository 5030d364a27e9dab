"""Softmax attention with padding, position bias and a key-value cache.

    O = softmax(Q Kᵀ / √k + bias) V                                  (TITAN eq. 33, SAIDL 2.2)

Calls torch's fused `scaled_dot_product_attention`. Keys and values may have fewer heads than
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


class _Cached(NamedTuple):
    k: Float[Tensor, "b g s k"]
    v: Float[Tensor, "b g s v"]
    pos: Int[Tensor, "b s"]
    mask: Bool[Tensor, "b s"]


class _Buffers:
    """Preallocated tensors (k, v, pos, mask) and the number of used places on their token axis."""

    def __init__(self, tensors: tuple[Tensor, ...], used: int) -> None:
        self.tensors = tensors
        self.used = used


class KVCache(_Cached):
    """Keys, values, positions and mask of s past tokens in `g` key-value heads.

    Without gradients, the tensors are views of the first places of larger buffers, so that `extend`
    writes new tokens and copies no old ones. A cache is immutable. `extend` writes into the shared
    buffers only if the cache ends at their last used place; otherwise, for example in a second
    continuation of one text, it copies.
    """

    _buffers: _Buffers | None = None
    #: Known to have no padding; False also where nobody knows, as in a copy by fields.
    unpadded: bool = False

    @staticmethod
    def empty(batch: int, heads: int, k: int, v: int, like: Tensor) -> KVCache:
        """Cache of no tokens, in the dtype and on the device of `like`."""
        pos = torch.empty(batch, 0, dtype=torch.long, device=like.device)
        cache = KVCache(
            like.new_empty(batch, heads, 0, k), like.new_empty(batch, heads, 0, v), pos, pos.bool()
        )
        cache.unpadded = True
        return cache

    def extend(self, k: Tensor, v: Tensor, pos: Tensor, mask: Tensor | None) -> KVCache:
        """Cache with t more tokens: k, v [b g t ·], `pos` [b|1 t], `mask` [b t] or None."""
        if torch.is_grad_enabled():
            return self.joined(k, v, pos, mask)
        start, end = self.pos.shape[1], self.pos.shape[1] + pos.shape[1]
        buffers = self._buffers
        if buffers is None or buffers.used != start or end > buffers.tensors[2].shape[1]:
            buffers = self._enlarged(end)
        for buffer, dim, new in zip(buffers.tensors, _TOKEN_AXES, (k, v, pos, mask), strict=True):
            place = buffer.narrow(dim, start, end - start)
            place.fill_(True) if new is None else place.copy_(new)
        buffers.used = end
        views = (b.narrow(dim, 0, end) for b, dim in zip(buffers.tensors, _TOKEN_AXES, strict=True))
        longer = KVCache(*views)
        longer._buffers = buffers
        longer.unpadded = self.unpadded and mask is None
        return longer

    def joined(self, k: Tensor, v: Tensor, pos: Tensor, mask: Tensor | None) -> KVCache:
        """As `extend`, but concatenates into new tensors without spare places."""
        batch, tokens, unpadded = k.shape[0], k.shape[2], self.unpadded and mask is None
        if mask is None:
            mask = torch.ones(batch, tokens, dtype=torch.bool, device=k.device)
        longer = KVCache(
            torch.cat([self.k, k.to(self.k.dtype)], 2),
            torch.cat([self.v, v.to(self.v.dtype)], 2),
            torch.cat([self.pos, pos.expand(batch, -1)], 1),
            torch.cat([self.mask, mask], 1),
        )
        longer.unpadded = unpadded
        return longer

    def _enlarged(self, tokens: int) -> _Buffers:
        """Copy into buffers for `tokens` and an eighth more: on average 8 copies per new token."""
        places, tensors = tokens + max(64, tokens // 8), []
        for old, dim in zip(self, _TOKEN_AXES, strict=True):
            shape = list(old.shape)
            shape[dim] = places
            tensors.append(old.new_zeros(shape))
            tensors[-1].narrow(dim, 0, old.shape[dim]).copy_(old)
        return _Buffers(tuple(tensors), self.pos.shape[1])


#: Token axes of k, v, pos and mask.
_TOKEN_AXES = (2, 2, 1, 1)


@dataclass(frozen=True)
class Heads:
    """`h` query heads and `g` key-value heads of equal width. ValueError if g does not divide h."""

    h: int
    g: int

    def __post_init__(self) -> None:
        if self.h % self.g:
            raise ValueError(f"kv_heads={self.g} does not divide heads={self.h}")

    @staticmethod
    def of(h: int, kv_heads: int | Literal["quarter"] | None) -> Heads:
        """Heads from settings; `quarter` is max(1, h/4), as TITAN's 4 groups of 16 heads."""
        return Heads(h, max(1, h // 4) if kv_heads == "quarter" else kv_heads or h)

    def split(self, x: Float[Tensor, "b t d"], heads: int) -> Float[Tensor, "b h t k"]:
        return rearrange(x, "b t (h k) -> b h t k", h=heads)


def allowed(
    t: int, s: int, mask: Bool[Tensor, "b s"] | None, *, causal: bool, device: torch.device
) -> Bool[Tensor, "b 1 t s"] | None:
    """Attention mask of the last t of s tokens: True where a query may attend to a key.

    None if every query may attend to every key. A query may always attend to itself: otherwise the
    softmax of a padded query is NaN. Outputs of padded queries are never used.
    """
    if mask is None and not (causal and t > 1):
        return None
    queries = torch.arange(s - t, s, device=device)[:, None]
    keys = torch.arange(s, device=device)[None, :]
    visible = keys <= queries if causal else torch.ones(t, s, dtype=torch.bool, device=device)
    if mask is None:
        return visible[None, None]
    return (visible & mask[:, None, :] | (keys == queries))[:, None]


def within(
    documents: Int[Tensor, "b t"], visible: Bool[Tensor, "#b 1 t t"] | None
) -> Bool[Tensor, "b 1 t t"]:
    """Attention mask of packed rows: `visible`, but no keys of other documents."""
    same = (documents[:, :, None] == documents[:, None, :])[:, None]
    return same if visible is None else same & visible


def attend(
    q: Float[Tensor, "b h t k"],
    k: Float[Tensor, "b g s k"],
    v: Float[Tensor, "b g s v"],
    *,
    mask: Bool[Tensor, "b s"] | None = None,
    bias: Float[Tensor, "#b h t s"] | None = None,
    causal: bool = False,
    dropout: float = 0.0,
    visible: Bool[Tensor, "b 1 t s"] | None = None,
    dense: bool = False,
) -> Float[Tensor, "b h t v"]:
    """Softmax attention of the last t of s tokens over all s tokens.

    Args:
        q, k, v: queries, keys and values; the number of key heads g divides h.
        mask: True for real keys; None if there is no padding.
        bias: added to the scores.
        causal: exclude keys after the query.
        dropout: probability, applied to the attention weights.
        visible: `allowed` of these tokens, if it is known, or `within`.
        dense: hold all scores and weights in memory, as attention without a fused kernel does.
    """
    t, s, g = q.shape[2], k.shape[2], k.shape[1]
    if not dense and mask is None and bias is None and visible is None and t == s:
        return sdpa(q, k, v, causal=causal and t > 1, dropout=dropout)
    where = visible
    if where is None:
        where = allowed(t, s, mask, causal=causal, device=q.device)
    if bias is not None and where is not None:
        where = bias.masked_fill(~where, float("-inf"))
    elif bias is not None:
        where = bias
    if dense:
        return unfused(q, k, v, where, dropout=dropout)
    if q.shape[1] != g and t == 1:
        # In a decoding step, all queries of a group share one read of their key head.
        if where is not None and where.shape[1] > 1:
            where = rearrange(where, "b (g r) 1 s -> b g r s", g=g)
        q = rearrange(q, "b (g r) 1 k -> b g r k", g=g)
        y = sdpa(q, k, v, where, dropout=dropout)
        return rearrange(y, "b g r v -> b (g r) 1 v")
    return sdpa(q, k, v, where, dropout=dropout)


def unfused(
    q: Float[Tensor, "b h t k"],
    k: Float[Tensor, "b g s k"],
    v: Float[Tensor, "b g s v"],
    where: Tensor | None,
    *,
    dropout: float = 0.0,
) -> Float[Tensor, "b h t v"]:
    """Attention as it is written: scores, mask, softmax and weights are tensors of their own.

    Args:
        q, k, v, dropout: as of `attend`.
        where: as of `sdpa`.
    """
    k, v = of_each_query(k, q.shape[1]), of_each_query(v, q.shape[1])
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    if where is not None and where.is_floating_point():
        scores = scores + where
    elif where is not None:
        scores = scores.masked_fill(~where, float("-inf"))
    return F.dropout(scores.softmax(-1), dropout) @ v


def of_each_query(x: Float[Tensor, "b g s k"], heads: int) -> Float[Tensor, "b h s k"]:
    """Keys or values of `heads` query heads, of which h / g in succession share one."""
    return x.repeat_interleave(heads // x.shape[1], 1)


def sdpa(
    q: Float[Tensor, "b h t k"],
    k: Float[Tensor, "b g s k"],
    v: Float[Tensor, "b g s v"],
    where: Tensor | None = None,
    *,
    causal: bool = False,
    dropout: float = 0.0,
) -> Float[Tensor, "b h t v"]:
    """torch's fused attention, whose key heads may be shared by query heads.

    Args:
        q, k, v, dropout: as of `attend`.
        where: True where a query may attend to a key, or a bias of the scores; None for all.
        causal: exclude keys after the query; t is s, and `where` None.
    """
    if where is not None and where.is_floating_point():
        where = where.to(q.dtype)
    h, g = q.shape[1], k.shape[1]
    if h != g and k.device.type == "cpu" and k.shape[0] * g == 1:
        # The backward pass there is one task for each sample and key head. A single task does its
        # small products on all threads, which wait for each other at each of them.
        k, v, g = k.expand(-1, h, -1, -1), v.expand(-1, h, -1, -1), h
    elif h != g and k.is_cuda and k.dtype == torch.float32:
        # The fused kernel for float32 there shares no key heads: torch would hold all scores.
        k, v, g = of_each_query(k, h), of_each_query(v, h), h
    return F.scaled_dot_product_attention(
        q, k, v, attn_mask=where, is_causal=causal, dropout_p=dropout, enable_gqa=h != g
    )
