"""The sums of the attention-free transformer (SPEC M15; arXiv 2105.14103).

    y_t = Σ_s exp(w_ts + k_s) ⊙ v_s / Σ_s exp(w_ts + k_s),   w_ts = a_t·b_s, or 0

`Sums` holds numerator and denominator, both times e^{−top}, channel by channel. Keys that all
queries of a set can see give their sums by one matrix product; what a causal query sees is a union
of such sets, merged by their tops. So nothing overflows, and no query is scaled by a key that it
cannot see. y does not depend on top, so no gradient passes through it. (In float32, tops of w and
of k are taken apart: where the two together differ by more than 80 within one set, a weight is 0.)
k, v [… t d]; a, b [… t r]; mask [… t 1], True where a key is real. Float32 at least is expected.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Shaped
from torch import Tensor
from torch.autograd.function import once_differentiable

#: Top of the sums over no key; finite, so that differences are.
NOTHING = -1e30

Keys = Float[Tensor, "*#b s d"]
Mask = Bool[Tensor, "*#b s 1"] | None


class Sums(NamedTuple):
    """Numerator and denominator times e^{−top}."""

    top: Float[Tensor, "*b d"]
    num: Float[Tensor, "*b d"]
    den: Float[Tensor, "*b d"]

    @staticmethod
    def empty(like: Float[Tensor, "*b d"]) -> Sums:
        """The sums over no key, in the shape and dtype of `like`."""
        return Sums(torch.full_like(like, NOTHING), torch.zeros_like(like), torch.zeros_like(like))

    def merge(self, other: Sums) -> Sums:
        """The sums over the keys of both."""
        top = torch.maximum(self.top, other.top)
        mine, theirs = (self.top - top).exp(), (other.top - top).exp()
        return Sums(
            top,
            torch.addcmul(self.num * mine, other.num, theirs),
            torch.addcmul(self.den * mine, other.den, theirs),
        )

    def at(self, axis: int) -> Sums:
        """With a new axis of one."""
        return Sums(*(x.unsqueeze(axis) for x in self))

    def read(self) -> Float[Tensor, "*b d"]:
        """y; 0 where there was no key."""
        return self.num / self.den.clamp(min=torch.finfo(self.den.dtype).tiny)


def each(k: Keys, v: Keys, mask: Mask) -> Sums:
    """Every key alone."""
    top = k.detach()
    e = (k - top).exp()  # 1, but for its gradient
    if mask is not None:
        top, e = top.masked_fill(~mask, NOTHING), e * mask
    return Sums(top, e * v, e)


def total(k: Keys, v: Keys, mask: Mask) -> Sums:
    """All keys of each set, equally near: [… s d] to [… 1 d]."""
    top, e = _weights(k, mask)
    return Sums(top, (e * v).sum(-2, keepdim=True), e.sum(-2, keepdim=True))


def weighted(w: Float[Tensor, "*#b t s"], k: Keys, v: Keys, mask: Mask) -> Sums:
    """All keys of each set for t queries that see them all: [… s d] to [… t d]."""
    top, e = _weights(k, mask)
    most = w.detach().amax(-1, keepdim=True)
    num, den = _mix((w - most).exp(), torch.cat([e * v, e], -1)).chunk(2, -1)
    return Sums(top + most, num, den)


def _mix(w: Float[Tensor, "*#b t s"], x: Float[Tensor, "*b s d"]) -> Float[Tensor, "*b t d"]:
    """w @ x; weights that a batch shares are not copied for each of it."""
    if len(w) == len(x):
        return w @ x
    y = w[0] @ x.movedim(0, -2).flatten(-2)
    return y.unflatten(-1, (len(x), -1)).movedim(-2, 0)


def _weights(k: Keys, mask: Mask) -> tuple[Tensor, Tensor]:
    if mask is None:
        top = k.detach().amax(-2, keepdim=True)
        return top, (k - top).exp()
    k = k.masked_fill(~mask, NOTHING)
    top = k.detach().amax(-2, keepdim=True)
    return top, (k - top).exp() * mask  # with no key at all, every difference is 0


def halving(
    a: Float[Tensor, "*#b t r"], b: Float[Tensor, "*#b t r"], k: Keys, v: Keys, mask: Mask
) -> Sums:
    """Keys s ≤ t: a right half sees all of the left, and so on inside of each half.

    log₂ t levels of one batched product each, t²/2 weights in all.
    """
    sums, t, size = each(k + (a * b).sum(-1, keepdim=True), v, mask), k.shape[-2], 1
    while size < t:
        count = -(-(t - size) // (2 * size))
        pairs = [_pairs(x, count, size) for x in (a, b, k, v)]
        right = pairs[0][..., size:, :]
        left_b, left_k, left_v = (x[..., :size, :] for x in pairs[1:])
        seen = None if mask is None else _pairs(mask, count, size)[..., :size, :]
        met = weighted(right @ left_b.mT, left_k, left_v, seen)
        blank = Sums.empty(left_k.detach())
        level = [torch.cat(x, -2).flatten(-3, -2)[..., :t, :] for x in zip(blank, met, strict=True)]
        short = (0, 0, 0, t - level[0].shape[-2])
        top, num, den = (
            F.pad(x, short, value=n) for x, n in zip(level, (NOTHING, 0.0, 0.0), strict=True)
        )
        sums, size = sums.merge(Sums(top, num, den)), 2 * size
    return sums


def _pairs(x: Shaped[Tensor, "*b t w"], count: int, size: int) -> Shaped[Tensor, "*b n t2 w"]:
    """Neighbouring halves; if there is one pair only, its right half need not be whole."""
    x = x[..., : 2 * size * count, :]
    if count > 1:
        x = F.pad(x, (0, 0, 0, 2 * size * count - x.shape[-2]))
    return x.unflatten(-2, (count, -1))


def running(sums: Sums) -> Sums:
    """Sums over all sets up to each of n, given along axis 1: [b n d] to [b n d]."""
    top = sums.top.cummax(1).values
    decay = torch.cat([torch.zeros_like(top[:, :1]), (top[:, :-1] - top[:, 1:]).exp()], 1)
    here = (sums.top - top).exp()
    x = torch.stack([sums.num * here, sums.den * here], -2)
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
    """w_ts = a_t·b_s for |t − s| < window and 0 beyond, where keys count all the same: t·window.

    Blocks of `window` tokens: w reaches from one into its neighbours; all that lies further is one
    running sum over blocks. `older` [b d] are the sums over what came before the first token.
    """
    t, n = k.shape[1], -(-k.shape[1] // window)
    if mask is None:
        mask = torch.ones_like(k[..., :1], dtype=torch.bool)
    a, b, k, v, mask = (
        F.pad(x, (0, 0, 0, n * window - t)).unflatten(1, (n, window)) for x in (a, b, k, v, mask)
    )

    def moved(x: Tensor, by: int, value: float = 0.0) -> Tensor:
        """Blocks `by` places later, or earlier if negative."""
        ends = (max(by, 0), max(-by, 0))
        return F.pad(x, (0, 0) * (x.ndim - 2) + ends, value=value)[:, max(-by, 0) :][:, :n]

    def beside(by: int) -> Sums:
        w = a @ moved(b, by).mT
        w = w.triu(1) if by > 0 else w.tril(-1)
        return weighted(w, moved(k, by), moved(v, by), moved(mask, by))

    def beyond(sums: Sums) -> Sums:
        blanks = zip(sums, (NOTHING, 0.0, 0.0), strict=True)
        return Sums(*(moved(x, 2, blank)[:, :, None] for x, blank in blanks))

    each_block = Sums(*(x.squeeze(2) for x in total(k, v, mask)))
    sums = beside(1).merge(beyond(running(each_block)))
    if causal:
        sums = sums.merge(halving(a, b, k, v, mask))
    else:
        back = beyond(running(Sums(*(x.flip(1) for x in each_block))))
        sums = sums.merge(weighted(a @ b.mT, k, v, mask)).merge(beside(-1))
        sums = sums.merge(Sums(*(x.flip(1) for x in back)))
    if older is not None:
        sums = sums.merge(older.at(1).at(1))
    return Sums(*(x.flatten(1, 2)[:, :t] for x in sums))


class _Recurrence(torch.autograd.Function):
    """y_t = decay_t ⊙ y_{t−1} + x_t along axis 1; no gradient to the decay."""

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
    """All chunks of √t tokens take each step together; then they are joined, one by one."""
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
