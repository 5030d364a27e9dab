"""Long convolution as a sum over distances."""

from __future__ import annotations

import torch
from torch import Tensor


def long_conv(x: Tensor, h: Tensor) -> Tensor:
    """y_t = Σ_{j≤t} h_j x_{t−j}; x [b t d], h [t d]."""
    return torch.stack(
        [sum(h[j] * x[:, t - j] for j in range(t + 1)) for t in range(x.shape[1])], 1
    )
