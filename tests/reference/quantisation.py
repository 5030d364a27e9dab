"""Quantisation in plain torch, and FP4 formats a value at a time."""

from __future__ import annotations

import math
from bisect import bisect_left

import torch
from torch import Tensor

# Quantisation in plain torch, with gradients by x + (q − x).detach().


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


# MXFP4 and NVFP4, a value at a time: the nearest entry of a table, ties to the even entry.

E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
E4M3 = [m * 2.0**-9 for m in range(8)] + [
    (8 + m) * 2.0 ** (e - 10) for e in range(1, 16) for m in range(8) if (e, m) != (15, 7)
]


def nearest(x: float, table: list[float]) -> float:
    """Nearest entry; of two equally near ones that with an even index, as its mantissa is even."""
    size = abs(x)
    above = min(bisect_left(table, size), len(table) - 1)
    below = max(above - 1, 0)
    gaps = size - table[below], table[above] - size
    first = gaps[0] < gaps[1] or (gaps[0] == gaps[1] and below % 2 == 0)
    return math.copysign(table[below if first else above], x)


def mxfp4(row: list[float]) -> list[float]:
    """OCP MX 6.3: 32 values share 2^(floor(log2 max) - 2)."""
    found: list[float] = []
    for at in range(0, len(row), 32):
        block = row[at : at + 32]
        scale = 2.0 ** (math.floor(math.log2(max(map(abs, block)))) - 2)
        found += [nearest(x / scale, E2M1) * scale for x in block]
    return found


def nvfp4(row: list[float], peak: float) -> list[float]:
    """2509.25149, appendix C: 16 values share an E4M3 scale, all share peak / (6 · 448)."""
    found: list[float] = []
    for at in range(0, len(row), 16):
        block = row[at : at + 16]
        second = peak / (6 * 448)
        scale = nearest(max(map(abs, block)) / 6 / second, E4M3) * second
        found += [nearest(x / scale, E2M1) * scale if scale else 0.0 for x in block]
    return found


def of_rows(rule: object, x: Tensor, *peak: float) -> Tensor:
    """A rule of one row applied to every row."""
    rows = [rule(row.tolist(), *peak) for row in x.flatten(0, -2)]  # type: ignore[operator]
    return torch.tensor(rows, dtype=x.dtype).view(x.shape)
