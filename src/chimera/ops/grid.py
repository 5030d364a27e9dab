"""Round activations to an integer grid scaled by their largest magnitude (SPEC Q6).

    x̂ = clip(round(x / s), −2^{n−1}, 2^{n−1} − 1) · s,   s = max|x| / (2^{n−1} − 1)

The caller chooses the maximum: per token or per channel. QDYT 3.2 adds ε to s; this code clamps
max|x| from below, as BitNet does. Shapes: [… d] to [… d].
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd import Function

from chimera.ops.precision import wide

FLOOR = 1e-5  # smallest max|x|, because a token of zeros has no scale (BitNet's value)


@torch.no_grad()
def to_grid(x: Float[Tensor, "*b d"], peak: Tensor, bits: int) -> Float[Tensor, "*b d"]:
    """Round x to the n-bit grid whose last point is `peak` (broadcast to x), and clip it."""
    levels = 2 ** (bits - 1) - 1
    step = peak.to(wide(x)).clamp(min=FLOOR) / levels
    return (x / step).round_().clamp_(-levels - 1, levels).mul_(step).to(x.dtype)


def rms_grid(x: Float[Tensor, "*b d"], bits: int, eps: float) -> Float[Tensor, "*b d"]:
    """Round x̄ = x / √(mean x² + eps) to a grid per token; the gradient is that of x̄.

    One function does both steps, so that the scale of a token is applied once.
    """
    return _RMSGrid.apply(x, bits, eps)


class _RMSGrid(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, bits: int, eps: float) -> Tensor:
        levels = 2 ** (bits - 1) - 1
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=wide(x))
        rstd = (length.square() / x.shape[-1] + eps).rsqrt()
        step = (x.abs().amax(-1, keepdim=True) * rstd).clamp(min=FLOOR) / levels
        ctx.save_for_backward(x, rstd)
        return (x * (rstd / step)).round_().mul_(step).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        # ∂x̄/∂x · g = rstd · g − x · rstd³ · mean(g ⊙ x)
        x, rstd = ctx.saved_tensors
        g = grads[0]
        along = (g * x).sum(-1, keepdim=True, dtype=rstd.dtype) / x.shape[-1]
        return torch.addcmul(g * rstd, x, rstd.pow(3) * along, value=-1).to(x.dtype), None, None
