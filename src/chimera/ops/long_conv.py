"""Causal depthwise convolution with a filter as long as the text (Hyena, arXiv 2302.10866).

    y_t = Σ_{0≤j≤t} h_j ⊙ x_{t−j}

By FFT, zeros added so that nothing wraps around: s·log s per channel; a single output is a
dot product with the filter, s per channel. Computes in float32 or wider, also under autocast: the
FFT's error is some roundings of the largest output, so that half precision would lose small ones.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from chimera.ops.precision import autocast_off, wide


def convolve(
    x: Float[Tensor, "b s d"], filters: Float[Tensor, "s d"], last: int
) -> Float[Tensor, "b t d"]:
    """The last outputs of the convolution, in float32 or wider.

    Args:
        x: all inputs from the first token on.
        filters: h, by distance.
        last: number of outputs t ≤ s.
    """
    dtype, tokens = wide(x, filters), x.shape[1]
    with autocast_off(x):
        x, filters = x.to(dtype), filters.to(dtype)
        if last == 1:
            return (x * filters.flip(0)).sum(1, keepdim=True)
        size = _fast(2 * tokens - 1)
        spectrum = torch.fft.rfft(x.mT.contiguous(), size) * torch.fft.rfft(filters.mT, size)
        return torch.fft.irfft(spectrum, size)[..., tokens - last : tokens].mT


def _fast(size: int) -> int:
    """Smallest 2^n or 3·2^n that is not below `size`."""
    power = 1 << (size - 1).bit_length()
    return power * 3 // 4 if size <= power * 3 // 4 else power
