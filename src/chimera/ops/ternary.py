"""Quantise latent weights to ternary, binary or integer codes times a scale (SPEC Q2-Q5).

    Ŵ = scale · code(W)

A rule first measures a weight, then codes it. The two steps are separate, so that an embedding
codes only the rows it looks up. All functions but `LearnedStep` run without autograd; `straight`
provides the gradient.

    absmean     scale = step = mean|W|                          (TITAN eq. 35, arXiv 2402.17764)
    threshold   code = sign(W)·[|W| > τ], τ = mean|W| = scale   (TITAN eq. 34, Alg. 3)
    TWN         τ = 0.7·mean|W|, scale = mean of those |W| > τ  (arXiv 1605.04711)
    sign        code = ±1 by W > mean W, scale = mean|W|        (arXiv 2310.11453)
    absmax      scale = step = max|W| / (2^{n−1} − 1)

A ternary code is clip(round(W/step), −1, 1), which is 0 for |W| ≤ step/2. Therefore a threshold τ
is a step of 2τ.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd import Function

from chimera.ops.grid import FLOOR
from chimera.ops.precision import wide

Measured = tuple[Tensor, Tensor]
TWN_THRESHOLD = 0.7


def mean_size(w: Tensor, rows: bool) -> Tensor:
    """mean|w| of the whole weight ([]) or of each row ([rows 1])."""
    return w.abs().mean(-1, keepdim=True, dtype=wide(w)) if rows else w.abs().mean(dtype=wide(w))


def absmean(w: Tensor, rows: bool) -> Measured:
    scale = mean_size(w, rows).clamp(min=FLOOR)
    return scale, scale


def threshold(w: Tensor, rows: bool) -> Measured:
    scale = mean_size(w, rows).clamp(min=FLOOR)
    return 2 * scale, scale


def twn(w: Tensor, rows: bool) -> Measured:
    sizes = w.abs()
    tau = TWN_THRESHOLD * mean_size(w, rows).clamp(min=FLOOR)
    kept = sizes > tau
    dims = (-1,) if rows else tuple(range(w.ndim))
    total = (sizes * kept).sum(dims, keepdim=rows, dtype=wide(w))
    return 2 * tau, total / kept.sum(dims, keepdim=rows).clamp(min=1)


def centred(w: Tensor, rows: bool) -> Measured:
    dims = (-1,) if rows else tuple(range(w.ndim))
    return w.mean(dims, keepdim=rows, dtype=wide(w)), mean_size(w, rows).clamp(min=FLOOR)


def absmax(w: Tensor, rows: bool, bits: int) -> Measured:
    peak = w.abs().amax(-1, keepdim=True) if rows else w.abs().max()
    scale = peak.to(wide(w)).clamp(min=FLOOR) / (2 ** (bits - 1) - 1)
    return scale, scale


def round_codes(w: Tensor, step: Tensor, bound: int) -> Tensor:
    return (w / step).round_().clamp_(-bound, bound)


def sign_codes(w: Tensor, centre: Tensor) -> Tensor:
    """Codes ±1; a weight equal to the centre has code −1."""
    return (w > centre).to(wide(w)).mul_(2).sub_(1)


@dataclass(frozen=True)
class Rule:
    """Quantisation rule of a weight.

    Args:
        measure: weight → (step or centre, scale), each [], or [rows 1] if `rows`.
        code: (weight, step or centre) → codes.
        rows: one scale per row (output channel, embedding entry) instead of one per weight.
    """

    measure: Callable[[Tensor, bool], Measured]
    code: Callable[[Tensor, Tensor], Tensor]
    rows: bool = False

    @torch.no_grad()
    def codes(self, w: Float[Tensor, "n d"]) -> tuple[Float[Tensor, "n d"], Tensor]:
        """Codes (integer values in the weight's dtype) and their scale."""
        step, scale = self.measure(w, self.rows)
        return self.code(w, step), scale

    @torch.no_grad()
    def quantised(
        self, w: Float[Tensor, "*b d"], measured: Float[Tensor, "n d"] | None = None
    ) -> Float[Tensor, "*b d"]:
        """scale · codes in the dtype of w.

        Args:
            w: weight to quantise, or rows of it.
            measured: whole weight, if w is only some of its rows. A rule with `rows` measures w
                itself, with the same result.
        """
        whole = w if measured is None or self.rows else measured
        step, scale = self.measure(whole, self.rows)
        return self.code(w, step).mul_(scale).to(w.dtype)


def ternary(measure: Callable[[Tensor, bool], Measured], *, rows: bool = False) -> Rule:
    """Ternary rule with the given measure."""
    return Rule(measure, partial(round_codes, bound=1), rows)


def integer(bits: int) -> Rule:
    """Rule of n-bit integer codes with one scale per row."""
    bound = 2 ** (bits - 1) - 1
    return Rule(partial(absmax, bits=bits), partial(round_codes, bound=bound), rows=True)


BINARY = Rule(centred, sign_codes)


class LearnedStep(Function):
    """Ternary rounding with a learned step size per row (LSQ, arXiv 1902.08153, eq. 1-5).

    ŵ = s·clip(round(w/s), −1, 1);   ∂ŵ/∂w = [|w/s| < 1],
    ∂ŵ/∂s = round(w/s) − w/s inside, ±1 outside, times the gradient scale 1/√(weights per step · 1).
    «Inside» means |w/s| < 1.
    """

    @staticmethod
    def forward(ctx: Any, w: Tensor, step: Tensor) -> Tensor:
        ctx.save_for_backward(w, step)
        return round_codes(w, step, 1).mul_(step).to(w.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        w, step = ctx.saved_tensors
        ratio, g = w / step, grads[0]
        inside = ratio.abs() < 1
        slope = torch.where(inside, ratio.round() - ratio, ratio.sign())
        grad_step = (g * slope).sum(-1, keepdim=True) * w.shape[-1] ** -0.5
        return g * inside, grad_step.to(step.dtype)
