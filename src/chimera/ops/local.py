"""Softmax attention that looks only nearby: banded and block-diagonal, O(t·m) time and memory.

    O_i = softmax_{j ∈ N(i)}(q_i·k_j/√k + bias_ij) v_j,   N(i) given by a rule on positions

Queries go in blocks of c; each block sees its own keys, the blocks within reach before it and, in
encoders, after it: m keys. So no t × t array is ever made, and each block is one batch entry of
torch's fused `scaled_dot_product_attention` (SPEC M3, M4; SAIDL 2.5; arXiv 2004.05150).

Padding: `Aligned` moves the real tokens of each sequence to the front, in order. Then the distance
of two indices is the distance of the real tokens, wherever the padding was.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor

from chimera.contract import Ctx
from chimera.ops.attention import KVCache

#: (pos_q[… t 1], pos_k[… 1 s]) -> [… t s], True where the query may look at the key.
Rule = Callable[[Tensor, Tensor], Tensor]
#: `Position.bias`.
Bias = Callable[[Tensor, Tensor], Tensor | None]


@dataclass(frozen=True)
class Aligned:
    """Tokens of one call with the real ones first.

    Args:
        pos: [b|1 t] positions, in the new order.
        mask: [b t] True for real tokens, which come first; None if all are.
        order: [b t] old index of each new place; None if nothing moved.
        rank: [b t] new place of each old index.
    """

    pos: Int[Tensor, "#b t"]
    mask: Bool[Tensor, "b t"] | None = None
    order: Int[Tensor, "b t"] | None = None
    rank: Int[Tensor, "b t"] | None = None

    @staticmethod
    def of(ctx: Ctx) -> Aligned:
        """The order that puts the real tokens of `ctx` first."""
        if ctx.mask is None or ctx.mask.shape[1] == 1:
            return Aligned(ctx.pos, ctx.mask)
        real = ctx.mask.long()
        last = real.sum(1, keepdim=True) - 1
        rank = torch.where(ctx.mask, real.cumsum(1) - 1, last + (1 - real).cumsum(1))
        places = torch.arange(real.shape[1], device=rank.device).expand_as(rank)
        order = torch.empty_like(rank).scatter_(1, rank, places)
        pos = ctx.pos.expand_as(rank).gather(1, order)
        return Aligned(pos, ctx.mask.gather(1, order), order, rank)

    def take(self, x: Float[Tensor, "b t d"]) -> Float[Tensor, "b t d"]:
        """x in the new order."""
        return x if self.order is None else _rows(x, self.order)

    def restore(self, y: Float[Tensor, "b t d"]) -> Float[Tensor, "b t d"]:
        """y back in the old order."""
        return y if self.rank is None else _rows(y, self.rank)


def _rows(x: Float[Tensor, "b t d"], index: Int[Tensor, "b t"]) -> Float[Tensor, "b t d"]:
    """x[i, index[i]]; copies whole rows, several times faster than `gather` there and back."""
    start = torch.arange(x.shape[0], device=x.device)[:, None] * x.shape[1]
    return x.flatten(0, 1).index_select(0, (index + start).flatten()).view_as(x)


def fresh(batch: int, heads: int, slots: int, width: int, like: Tensor) -> KVCache:
    """A cache of always `slots` places, filled from the end, none of them filled yet."""
    empty = like.new_zeros(batch, heads, slots, width)
    none = torch.zeros(batch, slots, dtype=torch.long, device=like.device)
    return KVCache(empty, empty, none, none > 0)


def extend(
    k: Float[Tensor, "b g t k"],
    v: Float[Tensor, "b g t k"],
    tokens: Aligned,
    state: KVCache | None,
) -> tuple[KVCache, KVCache | None]:
    """All keys there are to look at, and the cache for the next call if there is a `state`."""
    if state is None:
        real = torch.ones_like(tokens.pos, dtype=torch.bool)
        return KVCache(k, v, tokens.pos, real if tokens.mask is None else tokens.mask), None
    return remember(k, v, tokens, state)


def remember(
    k: Float[Tensor, "b g t k"],
    v: Float[Tensor, "b g t k"],
    tokens: Aligned,
    state: KVCache,
) -> tuple[KVCache, KVCache]:
    """The old places and the new tokens; and the cache of as many places, the last of them all."""
    slots = state.pos.shape[1]
    keys = state.joined(k, v, tokens.pos, tokens.mask)
    if tokens.mask is None:
        last = keys.pos.shape[1] - slots
        # Copies, or the cache would keep the whole sequence alive.
        heads, flat = (
            (x[:, :, last:].clone() for x in keys[:2]),
            (x[:, last:].clone() for x in keys[2:]),
        )
        return keys, KVCache(*heads, *flat)
    # The real ones follow the old places, so that the last of them stand `real` further on.
    at = tokens.mask.sum(1, keepdim=True) + torch.arange(slots, device=k.device)
    wide = at[:, None, :, None].expand(-1, k.shape[1], -1, k.shape[3])
    heads, flat = (x.gather(2, wide) for x in keys[:2]), (x.gather(1, at) for x in keys[2:])
    return keys, KVCache(*heads, *flat)


def attend(
    q: Float[Tensor, "b h t k"],
    keys: KVCache,
    pos: Int[Tensor, "#b t"],
    *,
    block: int | None,
    reach: int,
    causal: bool,
    rule: Rule,
    bias: Bias,
    dropout: float = 0.0,
) -> Float[Tensor, "b h t k"]:
    """Attention of the last t of s tokens on those that `rule` allows.

    Args:
        q: queries; as many as the last of `keys`.
        keys: keys, values, their positions and which of them are real.
        pos: [b|1 t] positions of the queries.
        block: queries in a block; None computes all t·s scores and masks them.
        reach: places before its block (in encoders also after) that a query may look at.
        causal: whether `rule` forbids the future.
        rule: whether a query may look at a key, by their positions.
        bias: `Position.bias`.
        dropout: of the weights.
    """
    if block is None or q.shape[2] <= block:
        return _dense(q, keys, pos, rule, bias, dropout)
    back = -(-reach // block)
    return _blocked(q, keys, pos, block, back, causal, rule, bias, dropout)


def _dense(q: Tensor, keys: KVCache, pos: Tensor, rule: Rule, bias: Bias, dropout: float) -> Tensor:
    t, s = q.shape[2], keys.k.shape[2]
    own = torch.arange(s - t, s, device=q.device)[:, None] == torch.arange(s, device=q.device)
    seen = rule(pos[..., None], keys.pos[:, None]) & keys.mask[:, None]
    # A padded query sees its own key: with nothing to look at its softmax would be NaN.
    where = (seen | own)[:, None]
    scores = bias(pos, keys.pos)
    if scores is not None:
        where = scores.masked_fill(~where, float("-inf"))
    return _sdpa(q, keys.k, keys.v, where, dropout=dropout)


def _blocked(
    q: Tensor,
    keys: KVCache,
    pos: Tensor,
    block: int,
    back: int,
    causal: bool,
    rule: Rule,
    bias: Bias,
    dropout: float,
) -> Tensor:
    b, t, past = q.shape[0], q.shape[2], keys.k.shape[2] - q.shape[2]
    n, ahead = -(-t // block), 0 if causal else back
    fill = n * block - t

    def windows(x: Tensor, dim: int) -> Tensor:
        """[… s …] to [… n m …]: along `dim`, what each block of queries may look at."""
        ends = (back * block - past, fill + ahead * block)
        x = F.pad(x, (0, 0) * (x.ndim - 1 - dim) + ends).unflatten(dim, (-1, block))
        return torch.cat([x.narrow(dim, i, n) for i in range(back + 1 + ahead)], dim + 1)

    q = rearrange(F.pad(q, (0, 0, 0, fill)), "b h (n c) k -> (b n) h c k", n=n)
    k = rearrange(windows(keys.k, 2), "b g n m k -> (b n) g m k")
    v = rearrange(windows(keys.v, 2), "b g n m k -> (b n) g m k")
    pos_k = windows(keys.pos, 1)
    pos_q = F.pad(pos, (0, fill)).expand(len(pos_k), -1).unflatten(1, (n, block))
    scores = bias(pos_q.flatten(0, 1), pos_k.flatten(0, 1))
    if scores is None and causal and back == 0:
        y = _sdpa(q, k, v, causal=True, dropout=dropout)  # padding comes last: nobody sees it
    else:
        own = torch.eye(block, k.shape[2], dtype=torch.bool, device=q.device).roll(back * block, 1)
        seen = rule(pos_q[..., None], pos_k[..., None, :]) & windows(keys.mask, 1)[..., None, :]
        where = (seen | own)[:, :, None]
        if scores is not None:
            scores = scores.unflatten(0, (-1, n) if scores.shape[0] > 1 else (1, 1))
            where = scores.masked_fill(~where, float("-inf"))
        y = _sdpa(q, k, v, where.expand(b, *where.shape[1:]).flatten(0, 1), dropout=dropout)
    return rearrange(y, "(b n) h c k -> b h (n c) k", n=n)[:, :, :t]


def _sdpa(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    where: Tensor | None = None,
    *,
    causal: bool = False,
    dropout: float = 0.0,
) -> Tensor:
    if where is not None and where.is_floating_point():
        where = where.to(q.dtype)
    grouped = q.shape[1] != k.shape[1]
    return F.scaled_dot_product_attention(
        q, k, v, attn_mask=where, is_causal=causal, dropout_p=dropout, enable_gqa=grouped
    )
