"""Local softmax attention, banded or block-diagonal, in O(t·m) time and memory.

    O_i = softmax_{j ∈ N(i)}(q_i·k_j/√k + bias_ij) v_j,   N(i) given by a rule on positions

Queries are divided into blocks of c. A block attends to m keys: its own, those of the blocks within
reach before it and, in encoders, after it. No t × t array is allocated: each block is one batch
entry of torch's fused `scaled_dot_product_attention` (SPEC M3, M4; SAIDL 2.5; arXiv 2004.05150).

`Aligned` moves the real tokens of each sequence to the front, in order. The distance of two indices
then equals the distance of the real tokens, wherever the padding was.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor

from chimera.contract import Context
from chimera.ops.attention import KVCache, sdpa, unfused

#: (pos_q[… t 1], pos_k[… 1 s]) -> [… t s], True where the query may attend to the key.
Rule = Callable[[Tensor, Tensor], Tensor]
#: Signature of `Position.bias`.
Bias = Callable[[Tensor, Tensor], Tensor | None]


@dataclass(frozen=True)
class Aligned:
    """Order of the tokens of one call that puts real tokens first.

    Args:
        pos: [b|1 t], positions in the new order.
        mask: [b t] in the new order, True for real tokens; None if there is no padding.
        order: [b t], old index of each new index; None if the order is unchanged.
        rank: [b t], new index of each old index; None if the order is unchanged.
    """

    pos: Int[Tensor, "#b t"]
    mask: Bool[Tensor, "b t"] | None = None
    order: Int[Tensor, "b t"] | None = None
    rank: Int[Tensor, "b t"] | None = None

    @staticmethod
    def of(ctx: Context) -> Aligned:
        """Order that puts the real tokens of `ctx` first; computed once per batch."""
        return ctx.cached("aligned", lambda: Aligned._of(ctx))

    @staticmethod
    def _of(ctx: Context) -> Aligned:
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
        """Permute x to the new order."""
        return x if self.order is None else _rows(x, self.order)

    def restore(self, y: Float[Tensor, "b t d"]) -> Float[Tensor, "b t d"]:
        """Permute y back to the old order."""
        return y if self.rank is None else _rows(y, self.rank)


def _rows(x: Float[Tensor, "b t d"], index: Int[Tensor, "b t"]) -> Float[Tensor, "b t d"]:
    """x[i, index[i]], by copies of whole rows: several times faster than `gather`, both passes."""
    start = torch.arange(x.shape[0], device=x.device)[:, None] * x.shape[1]
    return x.flatten(0, 1).index_select(0, (index + start).flatten()).view_as(x)


def empty_cache(batch: int, heads: int, slots: int, width: int, like: Tensor) -> KVCache:
    """Cache with a constant number of `slots` places, filled from the end; all are masked."""
    zeros = like.new_zeros(batch, heads, slots, width)
    pos = torch.zeros(batch, slots, dtype=torch.long, device=like.device)
    return KVCache(zeros, zeros, pos, pos > 0)


def extend(
    k: Float[Tensor, "b g t k"], v: Float[Tensor, "b g t k"], tokens: Aligned, state: KVCache | None
) -> tuple[KVCache, KVCache | None]:
    """Keys of cache and new tokens, and the cache for the next call (None if `state` is None)."""
    if state is None:
        real = torch.ones_like(tokens.pos, dtype=torch.bool)
        return KVCache(k, v, tokens.pos, real if tokens.mask is None else tokens.mask), None
    return slide(k, v, tokens, state)


def slide(
    k: Float[Tensor, "b g t k"], v: Float[Tensor, "b g t k"], tokens: Aligned, state: KVCache
) -> tuple[KVCache, KVCache]:
    """Keys of cache and new tokens, and the next cache: the last real ones, as many as before."""
    slots = state.pos.shape[1]
    keys = state.joined(k, v, tokens.pos, tokens.mask)
    if tokens.mask is None:
        last = keys.pos.shape[1] - slots
        # Copies, because views would keep the whole sequence in memory.
        heads, flat = (
            (x[:, :, last:].clone() for x in keys[:2]),
            (x[:, last:].clone() for x in keys[2:]),
        )
        return keys, KVCache(*heads, *flat)
    # Real tokens directly follow the cache: the last `slots` start at index «number of real ones».
    index = tokens.mask.sum(1, keepdim=True) + torch.arange(slots, device=k.device)
    wide = index[:, None, :, None].expand(-1, k.shape[1], -1, k.shape[3])
    heads, flat = (x.gather(2, wide) for x in keys[:2]), (x.gather(1, index) for x in keys[2:])
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
    dense: bool = False,
) -> Float[Tensor, "b h t k"]:
    """Attention of the last t of s tokens over the keys that `rule` allows.

    Args:
        q: queries of the last t tokens of `keys`.
        keys: keys, values, their positions and their mask.
        pos: [b|1 t], positions of the queries.
        block: queries in a block; None computes all t·s scores and masks them.
        reach: number of places before the block (in encoders also after) that a query may attend
            to.
        causal: True if `rule` forbids later keys.
        rule: decides by positions whether a query may attend to a key.
        bias: method `bias` of a `Position`.
        dropout: dropout probability of the attention weights.
        dense: without blocks, hold all scores in memory.
    """
    if block is None or q.shape[2] <= block:
        form = unfused if dense else sdpa
        return _dense(q, keys, pos, rule, bias, partial(form, dropout=dropout))
    back = -(-reach // block)
    return _blocked(q, keys, pos, block, back, causal, rule, bias, dropout)


def _dense(
    q: Tensor, keys: KVCache, pos: Tensor, rule: Rule, bias: Bias, form: Callable[..., Tensor]
) -> Tensor:
    t, s = q.shape[2], keys.k.shape[2]
    diagonal = torch.arange(s - t, s, device=q.device)[:, None] == torch.arange(s, device=q.device)
    visible = rule(pos[..., None], keys.pos[:, None]) & keys.mask[:, None]
    # A padded query attends to its own key; without any key its softmax is NaN.
    where = (visible | diagonal)[:, None]
    scores = bias(pos, keys.pos)
    if scores is not None:
        where = scores.masked_fill(~where, float("-inf"))
    return form(q, keys.k, keys.v, where)


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
        """[… s …] to [… n m …]: along `dim`, the m keys of each of n blocks of queries."""
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
        # the causal mask hides padding, at the end
        y = sdpa(q, k, v, causal=True, dropout=dropout)
    else:
        diagonal = torch.eye(block, k.shape[2], dtype=torch.bool, device=q.device).roll(
            back * block, 1
        )
        visible = rule(pos_q[..., None], pos_k[..., None, :]) & windows(keys.mask, 1)[..., None, :]
        where = (visible | diagonal)[:, :, None]
        if scores is not None:
            scores = scores.unflatten(0, (-1, n) if scores.shape[0] > 1 else (1, 1))
            where = scores.masked_fill(~where, float("-inf"))
        y = sdpa(q, k, v, where.expand(b, *where.shape[1:]).flatten(0, 1), dropout=dropout)
    return rearrange(y, "(b n) h c k -> b h (n c) k", n=n)[:, :, :t]
