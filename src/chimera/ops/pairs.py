"""Products of queries and keys under a decay per channel, without dividing by a decay.

    P_sr = Σ_c x_sc exp(Σ_{r<i<s} g_ic) y_rc        for r < s, else 0;   g ≤ 0

A chunk is halved, and its halves again: readers s in the second half and writers r in the first
meet at the middle, where the exponent splits into two sums that are ≤ 0 (secondary chunking of GLA,
arXiv 2312.06635, section 4.3, carried on to single tokens):

    exp(Σ_{r<i<s} g) = exp(Σ_{r<i≤middle} g) · exp(Σ_{middle<i<s} g)

So each of log₂ C levels is one batch of matrix products of factors that cannot overflow, and the
sums are short: no weight is the difference of two large numbers. The usual factors exp(G_s) and
exp(−G_r) overflow in float32 once a chunk decays by e⁸⁸.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from chimera.ops.precision import autocast_off


class Pairs(NamedTuple):
    """Products within chunks, and the log-decay between tokens and the ends of their chunk."""

    products: Float[Tensor, "r w n c c"]
    before: Float[Tensor, "n c k"]  # of the tokens of the chunk before each token
    after: Float[Tensor, "n c k"]  # of those after it
    whole: Float[Tensor, "n k"]  # of the chunk


def pairs(
    x: Float[Tensor, "n c r k"], y: Float[Tensor, "n c w k"], g: Float[Tensor, "n c k"]
) -> Pairs:
    """All products of r kinds of readers with w kinds of writers, strictly lower triangular.

    Args:
        x, y: readers and writers of each token, in one dtype, float32 or wider. The chunk length c
            has to be a power of two.
        g: log-decay between the tokens before and after each token, ≤ 0. That of the reader and of
            the writer itself do not count.

    Returns:
        P and the sums of g that it needs, differentiable once.
    """
    return Pairs(*_Pairs.apply(x, y, g))


class _Pairs(torch.autograd.Function):
    """Keeps the decays of all levels, which the backward pass needs in reverse order."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, g: Tensor) -> tuple[Tensor, ...]:
        n, c, k = g.shape
        p = x.new_zeros(x.shape[2], y.shape[2], n, c, c)
        before, after = torch.zeros_like(g), torch.zeros_like(g)  # within blocks of m tokens
        decays: list[Tensor] = []
        whole, m = g, 1
        while m < c:
            decay = None
            if m > 1:  # between neighbours there is none
                decay = torch.empty_like(g)
                _half(decay, m, 1).copy_(_half(before, m, 1))
                _half(decay, m, 0).copy_(_half(after, m, 0))
                decays.append(decay.exp_())
            read, write = _factors(x, y, decay, m)
            if k == 1:
                product = read * write.flatten(2)[:, :, None, None]
            else:
                product = read.flatten(0, 1).flatten(1, 2) @ write.flatten(0, 1).flatten(1, 2).mT
            _blocks(p, m).copy_(product.view(*read.shape[:4], *write.shape[2:4]))
            left, right = whole.view(n, -1, 2, 1, k).unbind(2)
            _half(before, m, 1).add_(left)
            _half(after, m, 0).add_(right)
            whole, m = left + right, 2 * m
        ctx.save_for_backward(x, y, *decays)
        return p, before, after, whole.reshape(n, k).clone()

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, dp: Tensor, dbefore: Tensor, dafter: Tensor, dwhole: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        # Autocast must be off: a backward pass started under autocast runs under autocast.
        with autocast_off(dp):
            x, y, *decays = ctx.saved_tensors
            dx, dy = torch.zeros_like(x), torch.zeros_like(y)
            before, after, whole = dbefore.clone(), dafter.clone(), dwhole[:, None]
            m = x.shape[1] // 2
            while m:
                decay = decays.pop() if m > 1 else None
                read, write = _factors(x, y, decay, m)
                d = _blocks(dp, m).flatten(4, 5).flatten(2, 3).flatten(0, 1)
                dread = (d @ write.flatten(0, 1).flatten(1, 2)).view_as(read)
                dwrite = (d.mT @ read.flatten(0, 1).flatten(1, 2)).view_as(write)
                # The adjoint of the sums of this level, then of its decays.
                left = whole + _half(before, m, 1).sum(2)
                right = whole + _half(after, m, 0).sum(2)
                whole = torch.stack([left, right], 2).flatten(1, 2)
                if decay is not None:
                    _half(before, m, 1).add_((dread * read).sum(3))
                    _half(after, m, 0).add_((dwrite * write).sum(3))
                    dread.mul_(_half(decay, m, 1)[..., None, :])
                    dwrite.mul_(_half(decay, m, 0)[..., None, :])
                _half(dx, m, 1).add_(dread)
                _half(dy, m, 0).add_(dwrite)
                m //= 2
            return dx, dy, whole


def _half(x: Float[Tensor, "n c *k"], m: int, which: int) -> Float[Tensor, "n j m *k"]:
    """View of the first or second halves, m tokens each, of all blocks."""
    return x.unflatten(1, (-1, 2, m))[:, :, which]


def _factors(x: Tensor, y: Tensor, decay: Tensor | None, m: int) -> tuple[Tensor, Tensor]:
    """Readers [n j m r k] of second halves and writers [n j m w k] of first ones, decayed."""
    read, write = _half(x, m, 1), _half(y, m, 0)
    if decay is None:
        return read, write
    return read * _half(decay, m, 1)[..., None, :], write * _half(decay, m, 0)[..., None, :]


def _blocks(p: Float[Tensor, "r w n c c"], m: int) -> Float[Tensor, "n j m r m w"]:
    """View of the products of second halves with the first halves of their blocks."""
    cut = p.unflatten(4, (-1, 2, m)).unflatten(3, (-1, 2, m))
    return cut[:, :, :, :, 1, :, :, 0].diagonal(0, 3, 5).permute(2, 5, 3, 0, 4, 1)
