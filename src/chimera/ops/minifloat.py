"""Round to small floating-point formats: FP4 with block scales, MX and NVFP4.

    E2M1    ±{0, ½, 1, 1½, 2, 3, 4, 6}                    one sign, two exponent, one mantissa bit
    E4M3    ±{0, 2⁻⁹, …, 448}                             scales of NVFP4
    E8M0    2⁻¹²⁷ … 2¹²⁷                                  scales of MX
    MXFP4   blocks of 32, scale 2^(⌊log₂ max|x|⌋ − 2)      (OCP Microscaling Formats v1.0, 5.2, 6.3)
    NVFP4   blocks of 16, scale E4M3(max|x| / (6·S))·S,
            S = max|x| of a row or a matrix / (6·448)     (arXiv 2509.25149, appendix C)

Rounding is to nearest, ties to even, in float32 or wider; larger values saturate. A block has
consecutive values of the last axis; the last block of a row may be shorter. A block with an
infinite value gets the scale NaN, as MX says. All functions run without autograd.
Shapes: x [… d], scales [… d] (repeated over their blocks).
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from chimera.ops.precision import wide, widen

#: Mantissa bits, exponent of the smallest normal number, largest number.
Format = tuple[int, int, float]
E2M1: Format = (1, 0, 6.0)
E4M3: Format = (3, -6, 448.0)
E8M0 = 127  # largest exponent, and smallest below zero
MX_BLOCK, NV_BLOCK = 32, 16


def exponent(x: Tensor) -> Tensor:
    """⌊log₂|x|⌋ as integers, exact; −1 for 0."""
    return torch.frexp(x.abs()).exponent - 1


@torch.no_grad()
def minifloat(x: Float[Tensor, "*b"], form: Format) -> Float[Tensor, "*b"]:
    """x rounded to a format, in float32 or wider."""
    mantissa, least, largest = form
    x = widen(x)
    quantum = torch.ldexp(torch.ones_like(x), exponent(x).clamp(min=least) - mantissa)
    return (x / quantum).round_().mul_(quantum).clamp_(-largest, largest)


def peaks(x: Float[Tensor, "*b d"], block: int) -> Float[Tensor, "*b m"]:
    """Largest magnitude of each block."""
    return F.pad(widen(x).abs(), (0, -x.shape[-1] % block)).unflatten(-1, (-1, block)).amax(-1)


def spread(scales: Float[Tensor, "*b m"], block: int, width: int) -> Float[Tensor, "*b d"]:
    """Repeat the scale of each block over its values."""
    return scales.repeat_interleave(block, -1)[..., :width]


@torch.no_grad()
def mx_scales(x: Float[Tensor, "*b d"], nudge: float = 1.0) -> Float[Tensor, "*b d"]:
    """Powers of two by which MXFP4 divides x."""
    largest = peaks(x, MX_BLOCK)
    power = (exponent(largest * nudge) - int(math.log2(E2M1[2]))).clamp(-E8M0, E8M0)
    scales = torch.ldexp(torch.ones_like(largest), power)
    return spread(scales.where(largest.isfinite(), math.nan), MX_BLOCK, x.shape[-1])


@torch.no_grad()
def nv_scales(x: Float[Tensor, "*b d"], nudge: float = 1.0, *, rows: bool) -> Float[Tensor, "*b d"]:
    """Products of both scales by which NVFP4 divides x.

    Args:
        x: weight or activations.
        nudge: factor of what is rounded (`ops.grid`).
        rows: one second-level scale for each row of the last axis; False: one for all of x.
    """
    largest = peaks(x, NV_BLOCK)
    whole = largest.amax(-1, keepdim=True) if rows else largest.max()
    second = whole / (E2M1[2] * E4M3[2])
    second = second.where(second > 0, 1.0)  # x is 0 throughout, or its scale is no number
    first = minifloat(largest / E2M1[2] / second * nudge, E4M3)
    scales = (first * second).where(largest.isfinite(), math.nan)
    return spread(scales, NV_BLOCK, x.shape[-1])


@torch.no_grad()
def scaled(
    x: Float[Tensor, "*b d"], scales: Float[Tensor, "*b d"], nudge: float = 1.0
) -> Float[Tensor, "*b d"]:
    """E2M1(x / scale)·scale in x's dtype; 0 where the scale is 0."""
    codes = minifloat(x.to(wide(x)) / (scales.where(scales != 0, 1.0) / nudge), E2M1)
    return codes.mul_(scales).to(x.dtype)
