"""Log-linear attention: a state per power of two of the distance (arXiv 2506.04761).

    o_t = Σ_ℓ λ_t^ℓ Σ_{s ∈ B_t^ℓ} exp(Σ_{s<i≤t} g_i) (q_t·k_s) v_s,    g_t ≤ 0

The tokens before t, counted from 0, are cut as a Fenwick tree cuts [0, t): bucket ℓ > 0 has 2^(ℓ−1)
tokens if t has the bit ℓ − 1, else none; bucket 0 is t itself. So s is in the bucket

    level(t, s) = bit length of t XOR s,

at most l − 1: the last of l levels has everything older. The state before token o has a matrix
per level; a later reader t finds the state's level ℓ at max(ℓ, level(t, o)), whatever o is, so
that chunks and prompts may begin and end anywhere. From the first token on, chunks are aligned with
the tree: a reader in the second half of a block of chunks reads the sum of its first half, one
batch of products for each of log₂ n levels (the paper's chunkwise form).

Heads of a group share q and k, as in `ops.ssd`. Shapes: q, k [b n t k]; v, o [b h t v]; g [b h t];
λ [b h t l]; state [b h l k v] and the number of tokens [b]. Weights are those of `ops.pairs`: all
arguments of exp are ≤ 0. Computes in float32 or wider, also under autocast.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor

from chimera.ops.carry import between
from chimera.ops.channels import chunk_size, chunked, power_of_two
from chimera.ops.precision import autocast_off, wide


class Levels(NamedTuple):
    """Sums k vᵀ of the buckets before the next token, and the number of tokens so far."""

    memory: Float[Tensor, "b h l k v"]
    tokens: Int[Tensor, " b"]


class _Chunks(NamedTuple):
    """Inputs in chunks, [b h m c ·]: decays to the ends of their chunk, and of whole chunks."""

    q: Tensor
    k: Tensor
    v: Tensor
    scale: Tensor
    start: Tensor  # exp of the decay from the start of the chunk, [b h m c 1]
    end: Tensor  # to its end
    whole: Float[Tensor, "b h m"]  # log-decay


def chunkwise(
    q: Float[Tensor, "b n t k"],
    k: Float[Tensor, "b n t k"],
    v: Float[Tensor, "b h t v"],
    g: Float[Tensor, "b h t"],
    scale: Float[Tensor, "b h t l"],
    state: Levels | None = None,
    mask: Bool[Tensor, "b t"] | None = None,
    *,
    chunk: int = 64,
) -> tuple[Float[Tensor, "b h t v"], Levels | None]:
    """Cost t·log t: quadratic inside chunks of `chunk` tokens, states by level between them.

    Args:
        q, k: queries and keys of n groups; h is a multiple of n, heads of a group are adjacent.
        v: values of h heads.
        g: log-decay before each token.
        scale: weights λ of the levels.
        state: state before the first token. None: empty, and no state is returned.
        mask: True for real tokens, which come first in each row unless a state is given; `masked`
            has set k and g of the others to 0.
        chunk: tokens in a chunk, a power of two; changes only speed.

    Returns:
        o, and the state after the last token (None if `state` is None).

    Raises:
        ValueError: `chunk` is no power of two.
    """
    tokens, dtype, heads = q.shape[2], wide(q, v), v.shape[1] // q.shape[1]
    size = chunk_size(chunk, tokens)
    with autocast_off(q):
        q, k = (x.repeat_interleave(heads, 1) for x in (q, k))
        cut = "b h (m c) k -> b h m c k"
        q, k, v, scale = (chunked(x.to(dtype), size, cut) for x in (q, k, v, scale))
        g = chunked(g.to(dtype)[..., None], size, "b h (m c) 1 -> (b h m) c")
        w, own = between(g), g.exp()[..., None]
        inside = w.products[0, 0] * own + torch.eye(size, dtype=dtype, device=g.device)
        shape = q.shape[:4]
        x = _Chunks(
            q, k, v, scale, (w.before.exp() * own).view(*shape, 1),
            w.after.exp().view(*shape, 1), w.whole.view(shape[:3]),
        )  # fmt: skip
        pos, starts = _positions(state, mask, tokens, size, q.device)
        level = _level(pos[..., :, None] ^ pos[..., None, :], scale.shape[-1])
        weights = scale.gather(4, level[:, None].expand(*shape, size))
        y = ((q @ k.mT) * inside.view(*shape, size) * weights) @ v
        if state is None:
            last = None
            if shape[2] > 1:
                y = y + _by_blocks(x)
        else:
            read, last = _by_chunks(x, state, pos, starts)
            y = y + read
        y = rearrange(y, "b h m c v -> b h (m c) v")
    return y[:, :, :tokens], last


def step(
    q: Float[Tensor, "b n 1 k"],
    k: Float[Tensor, "b n 1 k"],
    v: Float[Tensor, "b h 1 v"],
    g: Float[Tensor, "b h 1"],
    scale: Float[Tensor, "b h 1 l"],
    state: Levels,
    mask: Bool[Tensor, "b 1"] | None = None,
) -> tuple[Float[Tensor, "b h 1 v"], Levels]:
    """One token of the recurrence (section 3.1). Arguments and result as for `chunkwise`."""
    dtype, heads, levels = wide(q, v), v.shape[1] // q.shape[1], scale.shape[-1]
    real = torch.ones_like(state.tokens) if mask is None else mask[:, 0].long()
    with autocast_off(q):
        q, k = (x.to(dtype).repeat_interleave(heads, 1) for x in (q, k))
        v, scale = v.to(dtype), scale.to(dtype)
        past = state.memory.to(dtype) * g.to(dtype).exp()[..., None, None]
        added = k.mT @ v
        read = (q[:, :, None] @ past)[..., 0, :]  # of each level
        y = scale @ read + scale[..., :1] * (q @ added)
        new = state.tokens + real
        move = _level(new ^ state.tokens, levels)[:, None]
        to = torch.maximum(torch.arange(levels, device=move.device), move)
        memory = (
            _moved(past, to)
            + _at(move[:, 0], levels, dtype)[:, None, :, None, None] * (added[:, :, None])
        )
    return y, Levels(memory, new)


def masked(
    k: Float[Tensor, "b n t k"], g: Float[Tensor, "b h t"], mask: Bool[Tensor, "b t"] | None
) -> tuple[Float[Tensor, "b n t k"], Float[Tensor, "b h t"]]:
    """Set k and g of padded tokens (mask False) to 0: no input, no decay."""
    if mask is None:
        return k, g
    return k.masked_fill(~mask[:, None, :, None], 0), g.masked_fill(~mask[:, None], 0)


def levels_for(tokens: int) -> int:
    """Levels with which each bucket of so many tokens has its own."""
    return max(1, tokens - 1).bit_length() + 1


def _by_blocks(x: _Chunks) -> Float[Tensor, "b h m c v"]:
    """What chunks read of those before them, from the first token on: level by level."""
    b, h, m, c = x.q.shape[:4]
    n = power_of_two(m)
    fill = (0, 0) * 2 + (0, n - m)
    sums = F.pad((x.k * x.end).mT @ x.v, fill)  # of blocks of `width` chunks
    q, scale = F.pad(x.q * x.start, fill), F.pad(x.scale, fill)
    whole = F.pad(x.whole, (0, n - m))
    before = torch.zeros_like(whole)  # log-decay of the chunks before each one in its block
    y = torch.zeros(b, h, n, c, x.v.shape[-1], dtype=x.v.dtype, device=x.v.device)
    width, first = 1, c.bit_length()  # chunks of c tokens differ from bit log₂ c on
    while width < n:
        level = min(first, scale.shape[-1] - 1)
        halves = "b h (j two w) ... -> two b h j w ..."
        _, queries = rearrange(q, halves, two=2, w=width)
        _, weights = rearrange(scale[..., level : level + 1], halves, two=2, w=width)
        _, decay = rearrange(before, halves, two=2, w=width)
        left, right = rearrange(sums, "b h (j two) k v -> two b h j k v", two=2)
        read = (queries * decay.exp()[..., None, None]) @ left[:, :, :, None] * weights
        y = y + torch.stack([torch.zeros_like(read), read], 3).flatten(2, 4)
        total = whole.unflatten(2, (-1, 2))
        kept = total[..., 1]
        sums = kept.exp()[..., None, None] * left + right
        passed = torch.stack([torch.zeros_like(kept), total[..., 0]], -1)  # by the second half
        before = before + passed.flatten(2).repeat_interleave(width, 2)
        whole, width, first = total.sum(-1), 2 * width, first + 1
    return y[:, :, :m]


def _by_chunks(
    x: _Chunks, state: Levels, pos: Int[Tensor, "b m c"], starts: Int[Tensor, "b m1"]
) -> tuple[Float[Tensor, "b h m c v"], Levels]:
    """The same from any token on, chunk by chunk, and the state after the last one."""
    levels, dtype = x.scale.shape[-1], x.v.dtype
    memory, each = state.memory.to(dtype), torch.arange(levels, device=pos.device)
    outputs = []
    for i, (q, k, v, scale, start, end) in enumerate(
        zip(*(y.unbind(2) for y in x[:6]), strict=True)
    ):
        at = torch.maximum(each, _level(pos[:, i] ^ starts[:, i, None], levels)[..., None])
        weights = scale.gather(3, at[:, None].expand_as(scale)) * start
        reads = (weights[..., None] * q[..., None, :]).flatten(3)
        outputs.append(reads @ memory.flatten(2, 3))
        after = starts[:, i + 1, None]
        to = torch.maximum(each, _level(after ^ starts[:, i, None], levels))
        written = _at(_level(after ^ pos[:, i], levels), levels, dtype)[:, None, ..., None]
        writes = (written * (k * end)[..., None, :]).flatten(3)
        decay = x.whole[:, :, i].exp()[..., None, None, None]
        memory = _moved(memory * decay, to) + (writes.mT @ v).view_as(memory)
    return torch.stack(outputs, 2), Levels(memory, starts[:, -1])


def _positions(
    state: Levels | None, mask: Tensor | None, tokens: int, size: int, device: torch.device
) -> tuple[Int[Tensor, "b m c"], Int[Tensor, "b m1"]]:
    """Number of real tokens before each token, and before each chunk and after the last."""
    length = tokens + -tokens % size
    if state is None:
        pos = torch.arange(length, device=device)[None]
        return pos.unflatten(1, (-1, size)), pos[:, ::size]
    real = torch.ones(1, tokens, dtype=torch.long, device=device) if mask is None else mask.long()
    total = F.pad(F.pad(real, (0, length - tokens)).cumsum(1), (1, 0)) + state.tokens[:, None]
    return total[:, :-1].unflatten(1, (-1, size)), total[:, ::size]


def _level(x: Int[Tensor, "*n"], levels: int) -> Int[Tensor, "*n"]:
    """Bit length of x, at most `levels` − 1."""
    powers = 2 ** torch.arange(levels - 1, device=x.device)
    return torch.bucketize(x.contiguous(), powers, right=True)


def _at(level: Int[Tensor, "*n"], levels: int, dtype: torch.dtype) -> Float[Tensor, "*n l"]:
    return (level[..., None] == torch.arange(levels, device=level.device)).to(dtype)


def _moved(memory: Float[Tensor, "b h l k v"], to: Int[Tensor, "b l"]) -> Tensor:
    """Sum the levels that move to one place."""
    move = _at(to, to.shape[-1], memory.dtype).mT[:, None]
    return (move @ memory.flatten(3)).view_as(memory)
