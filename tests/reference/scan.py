"""Recurrences of ops.scan and ops.conv token by token: slow, simple, differentiable."""

from __future__ import annotations

import torch
from torch import Tensor


def selective_scan(
    x: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor, h: Tensor
) -> tuple[Tensor, Tensor]:
    """h_t = exp(Δ_t A) h_{t−1} + Δ_t B_t x_t, y_t = C_t h_t + D x_t; h [b n e]."""
    h, ys = h.mT, []
    for i in range(x.shape[1]):
        a = torch.exp(delta[:, i, :, None] * A)
        h = a * h + (delta[:, i] * x[:, i])[..., None] * B[:, i, None, :]
        ys.append((h * C[:, i, None, :]).sum(-1) + D * x[:, i])
    return torch.stack(ys, 1), h.mT


def causal_conv(x: Tensor, weight: Tensor, bias: Tensor, tail: Tensor) -> Tensor:
    """y_t = bias + Σ_j w_j ⊙ x_{t−k+1+j} over one sequence x [t d] with k−1 inputs before it."""
    past, k = torch.cat([tail, x]), weight.shape[1]
    return torch.stack([bias + (weight.T * past[i : i + k]).sum(0) for i in range(len(x))])
