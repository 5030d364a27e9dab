"""Quantisation in plain torch, with gradients by x + (q − x).detach()."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def bitlinear158(x: Tensor, w: Tensor, *, eps: float = 1e-6) -> Tensor:
    """BitNet b1.58 by its authors' notes: RMSNorm, absmax per token, absmean weights."""
    x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)
    scale = 127 / x.abs().max(-1, keepdim=True).values.clamp(min=1e-5)
    x_hat = (x * scale).round().clamp(-128, 127) / scale
    s = 1 / w.abs().mean().clamp(min=1e-5)
    w_hat = (w * s).round().clamp(-1, 1) / s
    return (x + (x_hat - x).detach()) @ (w + (w_hat - w).detach()).T


def bitlinear_b1(x: Tensor, w: Tensor) -> Tensor:
    """BitNet: LayerNorm, absmax per token, signs of the centred weights times mean |w|."""
    x = (x - x.mean(-1, keepdim=True)) / (x.var(-1, correction=0, keepdim=True) + 1e-5).sqrt()
    scale = 127 / x.abs().max(-1, keepdim=True).values
    x_hat = (x * scale).round() / scale
    w_hat = torch.where(w - w.mean() > 0, 1.0, -1.0).to(w) * w.abs().mean()
    return (x + (x_hat - x).detach()) @ (w + (w_hat - w).detach()).T


def hadamard(n: int) -> Tensor:
    """Entry (i, j) is (−1)^(number of common bits of i and j) / √n."""
    return torch.tensor(
        [[(-1.0) ** (i & j).bit_count() / math.sqrt(n) for j in range(n)] for i in range(n)],
        dtype=torch.float64,
    )


def lsq(w: float, s: float, g: float, per_step: int) -> tuple[float, float, float]:
    """Value, gradient of w and contribution to that of s, for one ternary weight (1902.08153)."""
    ratio = w / s
    code = max(-1, min(1, round(ratio)))
    if -1 < ratio < 1:
        return code * s, g, g * (code - ratio) / math.sqrt(per_step)
    return code * s, 0.0, g * (1.0 if ratio > 0 else -1.0) / math.sqrt(per_step)
