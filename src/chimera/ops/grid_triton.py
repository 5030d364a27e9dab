"""Codes of a grid per token, with a norm before it, in one kernel (`grid.to_codes`, `rms_codes`).

A program reads a token twice: for its largest magnitude and sum of squares, and to round it. It
computes in float32 as torch's own path does, but for the order of the sum of squares and the root.

Importing this module imports Triton. `kernels.gpu` decides whether it serves.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Int8
from torch import Tensor

from chimera.ops import grid
from chimera.ops.kernels import wrong

#: Adding and subtracting it rounds a number below 2²² to a whole one, halves to even.
WHOLE = tl.constexpr(1.5 * 2**23)
#: Channels that a program has in registers.
CHANNELS = 4096


@triton.jit
def _kernel(  # type: ignore[no-untyped-def]
    x, codes, steps, rstds, d, eps, nudge, FLOOR: tl.constexpr, LEVELS: tl.constexpr,
    K: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    squares = tl.zeros((K,), tl.float32)
    sizes = tl.zeros((K,), tl.float32)
    for start in range(0, d, K):
        channel = start + tl.arange(0, K)
        y = tl.load(x + token * d + channel, channel < d, other=0.0).to(tl.float32)
        squares += y * y
        sizes = tl.maximum(sizes, tl.where(y == y, tl.abs(y), float("inf")))  # of NaN too
    peak = tl.max(sizes, 0)
    if rstds is not None:
        rstd = 1 / tl.sqrt_rn(tl.sum(squares, 0) / d + eps)
        tl.store(rstds + token, rstd)
        peak *= rstd
        peak = tl.where(peak == peak, peak, float("inf"))
        step = tl.div_rn(tl.maximum(peak, FLOOR), LEVELS * 1.0)
        factor = rstd / step * nudge
    else:
        step = tl.div_rn(tl.maximum(peak, FLOOR), LEVELS * 1.0)
        factor = tl.div_rn(step, nudge)
    tl.store(steps + token, step)
    for start in range(0, d, K):
        channel = start + tl.arange(0, K)
        y = tl.load(x + token * d + channel, channel < d, other=0.0).to(tl.float32)
        y = y * factor if rstds is not None else tl.div_rn(y, factor)
        # None is past the peak: nothing to clip.
        tl.store(codes + token * d + channel, ((y + WHOLE) - WHOLE).to(tl.int8), channel < d)


def rounded(
    x: Float[Tensor, "*b d"], bits: int, eps: float | None, nudge: float
) -> tuple[Int8[Tensor, "*b d"], Tensor, Tensor | None]:
    """As `grid.rms_codes`: codes, step [… 1], rstd [… 1]. Without eps there is no norm, no rstd."""
    x = x.contiguous()
    d = x.shape[-1]
    codes = torch.empty_like(x, dtype=torch.int8)
    step = x.new_empty((*x.shape[:-1], 1), dtype=torch.float32)
    rstd = None if eps is None else torch.empty_like(step)
    if x.numel():
        with torch.cuda.device_of(x):
            _kernel[step.numel(),](
                x, codes, step, rstd, d, eps or 0.0, nudge, FLOOR=grid.FLOOR,
                LEVELS=2 ** (bits - 1) - 1, K=min(triton.next_power_of_2(d), CHANNELS),
                num_warps=8, enable_fp_fusion=False,
            )  # fmt: skip
    return codes, step, rstd


def fault(device: torch.device) -> str | None:
    """Why the kernel does not serve on a device, in one line; None if it does."""
    generator = torch.Generator().manual_seed(0)
    for d, eps in ((300, None), (CHANNELS + 100, 1e-6)):
        x = torch.randn(3, d, generator=generator)
        want = x if eps is None else x / (x.square().mean(-1, keepdim=True) + eps).sqrt()
        codes, step, _ = rounded(x.to(device), 8, eps, 1.0)
        far = (codes.cpu() * step.cpu() - want).abs() > 0.501 * step.cpu()
        if far.any() or wrong([step.cpu()], [want.abs().amax(-1, keepdim=True) / 127], 1e-5):
            return "wrong numbers"
    return None
