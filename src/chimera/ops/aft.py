"""Weighted sums of the attention-free transformer (SPEC M15; arXiv 2105.14103).

    y_t = Σ_s exp(w_ts + k_s) ⊙ v_s / Σ_s exp(w_ts + k_s),   w_ts = a_t·b_s, or 0

`Sums` holds numerator and denominator of each channel, both times e^{−top}, where top is the
largest exponent. One matrix product gives the sums over a set of keys that all queries of a block
attend to. A causal query attends to a union of such sets; `Sums.merge` adds their sums. Therefore
exp never overflows, and a query's top depends only on keys that it attends to. y does not depend on
top, so top has no gradient. In float32, w and k have separate tops: a weight underflows to 0 if w
and k together differ by more than 80 within one set.
Shapes: k, v [… t d]; a, b [… t r]; mask [… t 1], True for real keys. Inputs are float32 or wider.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Shaped
from torch import Tensor
from torch.autograd.function import once_differentiable

#: Top of the sums over no key. Finite, so that differences of tops are finite.
NO_KEY = -1e30

Keys = Float[Tensor, "*#b s d"]
Mask = Bool[Tensor, "*#b s 1"] | None


class Sums(NamedTuple):
    """Numerator and denominator of y, both times e^{−top}."""

    top: Float[Tensor, "*b d"]
    num: Float[Tensor, "*b d"]
    den: Float[Tensor, "*b d"]

    @staticmethod
    def empty(like: Float[Tensor, "*b d"]) -> Sums:
        """Sums over no key, in the shape and dtype of `like`."""
        return Sums(torch.full_like(like, NO_KEY), torch.zeros_like(like), torch.zeros_like(like))

    def merge(self, other: Sums) -> Sums:
        """Sums over the keys of `self` and `other`."""
        top = torch.maximum(self.top, other.top)
        scale, other_scale = (self.top - top).exp(), (other.top - top).exp()
        return Sums(
            top,
            torch.addcmul(self.num * scale, other.num, other_scale),
            torch.addcmul(self.den * scale, other.den, other_scale),
        )

    def unsqueeze(self, axis: int) -> Sums:
        """Insert an axis of size 1 into all three tensors."""
        return Sums(*(x.unsqueeze(axis) for x in self))

    def read(self) -> Float[Tensor, "*b d"]:
        """y = numerator / denominator; 0 for sums over no key."""
        return self.num / self.den.clamp(min=torch.finfo(self.den.dtype).tiny)


def each(k: Keys, v: Keys, mask: Mask) -> Sums:
    """Sums over one key each: [… s d] to [… s d]."""
    top = k.detach()
    e = (k - top).exp()  # equals 1, but has a gradient
    if mask is not None:
        top, e = top.masked_fill(~mask, NO_KEY), e * mask
    return Sums(top, e * v, e)


def total(k: Keys, v: Keys, mask: Mask) -> Sums:
    """Sums over all keys of each set with w = 0: [… s d] to [… 1 d]."""
    top, e = _weights(k, mask)
    return Sums(top, (e * v).sum(-2, keepdim=True), e.sum(-2, keepdim=True))


def weighted(w: Float[Tensor, "*#b t s"], k: Keys, v: Keys, mask: Mask) -> Sums:
    """Sums over all keys of each set for t queries, none masked: [… s d] to [… t d]."""
    top, e = _weights(k, mask)
    top_w = w.detach().amax(-1, keepdim=True)
    num, den = _mix((w - top_w).exp(), torch.cat([e * v, e], -1)).chunk(2, -1)
    return Sums(top + top_w, num, den)


def _mix(w: Float[Tensor, "*#b t s"], x: Float[Tensor, "*b s d"]) -> Float[Tensor, "*b t d"]:
    """w @ x without copying weights that all sequences of a batch share."""
    if len(w) == len(x):
        return w @ x
    y = w[0] @ x.movedim(0, -2).flatten(-2)
    return y.unflatten(-1, (len(x), -1)).movedim(-2, 0)


def _weights(k: Keys, mask: Mask) -> tuple[Tensor, Tensor]:
    if mask is None:
        top = k.detach().amax(-2, keepdim=True)
        return top, (k - top).exp()
    k = k.masked_fill(~mask, NO_KEY)
    top = k.detach().amax(-2, keepdim=True)
    return top, (k - top).exp() * mask  # k − top is 0, not NaN, if all keys are masked


def halving(
    a: Float[Tensor, "*#b t r"], b: Float[Tensor, "*#b t r"], k: Keys, v: Keys, mask: Mask
) -> Sums:
    """Causal sums over keys s ≤ t, by recursive halving: [… t d] to [… t d].

    Queries of a right half attend to all keys of the left half; each half is then halved again.
    Costs log₂ t levels of one batched matrix product each, t²/2 weights in total.
    """
    sums, t, size = each(k + (a * b).sum(-1, keepdim=True), v, mask), k.shape[-2], 1
    while size < t:
        count = -(-(t - size) // (2 * size))
        pairs = [_pairs(x, count, size) for x in (a, b, k, v)]
        right = pairs[0][..., size:, :]
        left_b, left_k, left_v = (x[..., :size, :] for x in pairs[1:])
        left_mask = None if mask is None else _pairs(mask, count, size)[..., :size, :]
        of_right = weighted(right @ left_b.mT, left_k, left_v, left_mask)
        of_left = Sums.empty(left_k.detach())
        level = [
            torch.cat(halves, -2).flatten(-3, -2)[..., :t, :]
            for halves in zip(of_left, of_right, strict=True)
        ]
        padding = (0, 0, 0, t - level[0].shape[-2])
        top, num, den = (
            F.pad(x, padding, value=fill) for x, fill in zip(level, (NO_KEY, 0.0, 0.0), strict=True)
        )
        sums, size = sums.merge(Sums(top, num, den)), 2 * size
    return sums


def _pairs(x: Shaped[Tensor, "*b t w"], count: int, size: int) -> Shaped[Tensor, "*b n t2 w"]:
    """Pairs of neighbouring halves of `size` tokens; a single pair's right half may be shorter."""
    x = x[..., : 2 * size * count, :]
    if count > 1:
        x = F.pad(x, (0, 0, 0, 2 * size * count - x.shape[-2]))
    return x.unflatten(-2, (count, -1))


def running(sums: Sums) -> Sums:
    """Cumulative sums along axis 1, over the first 1, 2, … n sets: [b n d] to [b n d]."""
    top = sums.top.cummax(1).values
    decay = torch.cat([torch.zeros_like(top[:, :1]), (top[:, :-1] - top[:, 1:]).exp()], 1)
    scale = (sums.top - top).exp()
    x = torch.stack([sums.num * scale, sums.den * scale], -2)
    num, den = _Recurrence.apply(x, decay[..., None, :]).unbind(-2)
    return Sums(top, num, den)


def local(
    a: Float[Tensor, "#b t r"],
    b: Float[Tensor, "#b t r"],
    k: Float[Tensor, "b t d"],
    v: Float[Tensor, "b t d"],
    mask: Bool[Tensor, "b t 1"] | None,
    *,
    window: int,
    causal: bool,
    older: Sums | None = None,
) -> Sums:
    """Sums with w_ts = a_t·b_s for |t − s| < window and w_ts = 0 otherwise; costs t·window.

    Tokens are divided into blocks of `window` tokens. w is nonzero only within a block and between
    neighbouring blocks; a cumulative sum over blocks covers more distant keys.

    Args:
        a, b: factors of w.
        k, v: keys and values.
        mask: True for real tokens; None if there is no padding.
        window: tokens with nonzero w, in each direction.
        causal: exclude keys s > t.
        older: [b d], sums over the keys before the first token.
    """
    t, n = k.shape[1], -(-k.shape[1] // window)
    if mask is None:
        mask = torch.ones_like(k[..., :1], dtype=torch.bool)
    a, b, k, v, mask = (
        F.pad(x, (0, 0, 0, n * window - t)).unflatten(1, (n, window)) for x in (a, b, k, v, mask)
    )

    def moved(x: Tensor, by: int, value: float = 0.0) -> Tensor:
        """Shift x by `by` blocks to the right, or to the left if negative; fill with `value`."""
        ends = (max(by, 0), max(-by, 0))
        return F.pad(x, (0, 0) * (x.ndim - 2) + ends, value=value)[:, max(-by, 0) :][:, :n]

    def beside(by: int) -> Sums:
        w = a @ moved(b, by).mT
        w = w.triu(1) if by > 0 else w.tril(-1)
        return weighted(w, moved(k, by), moved(v, by), moved(mask, by))

    def beyond(sums: Sums) -> Sums:
        fills = zip(sums, (NO_KEY, 0.0, 0.0), strict=True)
        return Sums(*(moved(x, 2, fill)[:, :, None] for x, fill in fills))

    each_block = Sums(*(x.squeeze(2) for x in total(k, v, mask)))
    sums = beside(1).merge(beyond(running(each_block)))
    if causal:
        sums = sums.merge(halving(a, b, k, v, mask))
    else:
        back = beyond(running(Sums(*(x.flip(1) for x in each_block))))
        sums = sums.merge(weighted(a @ b.mT, k, v, mask)).merge(beside(-1))
        sums = sums.merge(Sums(*(x.flip(1) for x in back)))
    if older is not None:
        sums = sums.merge(older.unsqueeze(1).unsqueeze(1))
    return Sums(*(x.flatten(1, 2)[:, :t] for x in sums))


class _Recurrence(torch.autograd.Function):
    """y_t = decay_t ⊙ y_{t−1} + x_t along axis 1; the decay gets no gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, decay: Tensor) -> Tensor:
        ctx.save_for_backward(decay)
        return _recur(x, decay)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None]:
        (decay,) = ctx.saved_tensors
        return _recur(dy.flip(1), decay.flip(1).roll(1, 1)).flip(1), None


def _recur(x: Float[Tensor, "b t 2 d"], decay: Float[Tensor, "b t 1 d"]) -> Tensor:
    """Run the recurrence in all chunks of √t tokens at once, then add each chunk's final state.

    The second loop runs over chunks, in order.
    """
    t = x.shape[1]
    size = max(1, math.isqrt(t))
    fill = (0, 0, 0, 0, 0, -t % size)
    y = F.pad(x, fill).unflatten(1, (-1, size)).clone(memory_format=torch.contiguous_format)
    decay = F.pad(decay, fill).unflatten(1, (-1, size))
    for i in range(1, size):
        y[:, :, i].addcmul_(decay[:, :, i], y[:, :, i - 1])
    since = decay.cumprod(2)
    for n in range(1, y.shape[1]):
        y[:, n, -1].addcmul_(since[:, n, -1], y[:, n - 1, -1])
    y[:, 1:, :-1].addcmul_(since[:, 1:, :-1], y[:, :-1, -1:])
    return y.flatten(1, 2)[:, :t]
