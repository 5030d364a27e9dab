"""Rotation of `ops.rotated` with what follows it, in two kernels, in Triton.

A program rotates n channels of some tokens, at most 256 by one product with H; H_{m·r} = H_m ⊗ H_r
adds and subtracts up to four of these. Entries are ±1, so that products in half precision are exact
and sum in float32; float32 is the sum of three numbers of bf16.

Importing this module imports Triton. `rotated` decides whether it serves.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from chimera.ops import grid, hadamard, rotated
from chimera.ops.kernels import wrong

#: Adding and subtracting it rounds a number below 2²² to a whole one, halves to even.
WHOLE = tl.constexpr(1.5 * 2**23)


@triton.jit
def _part(x, h, token, channel, count, d, R: tl.constexpr, WIDE: tl.constexpr):  # type: ignore[no-untyped-def]
    """R channels of these tokens times H_R, in float32, a few at a time: all would not fit."""
    K: tl.constexpr = 32 if R > 32 else R
    side = tl.arange(0, R)
    y = tl.zeros((token.shape[0], R), tl.float32)
    for start in range(0, R, K):
        few = start + tl.arange(0, K)
        matrix = tl.load(h + few[:, None] * R + side[None, :])
        place = token[:, None].to(tl.int64) * d + (channel + few)[None, :]
        rows = tl.load(x + place, (token < count)[:, None], other=0.0)
        if WIDE:
            for _ in tl.static_range(2):
                head = rows.to(tl.bfloat16)
                y += tl.dot(head.to(matrix.dtype), matrix)
                rows -= head.to(tl.float32)
            rows = rows.to(tl.bfloat16)
        y += tl.dot(rows.to(matrix.dtype), matrix)
    return y


@triton.jit
def _rotated(x, h, token, channel, count, d, R: tl.constexpr, M: tl.constexpr, WIDE: tl.constexpr):  # type: ignore[no-untyped-def]
    """M parts of R channels, rotated with H_M ⊗ H_R, not normalised; for M = 1 or 2 some repeat."""
    a = _part(x, h, token, channel, count, d, R, WIDE)
    b = a
    e = a
    f = a
    if M > 1:
        b = _part(x, h, token, channel + R, count, d, R, WIDE)
        a, b = a + b, a - b
    if M > 2:
        e = _part(x, h, token, channel + 2 * R, count, d, R, WIDE)
        f = _part(x, h, token, channel + 3 * R, count, d, R, WIDE)
        e, f = e + f, e - f
        return a + e, b + f, a - e, b - f
    return a, b, e, f


@triton.jit
def _larger(peak, y):  # type: ignore[no-untyped-def]
    """The largest magnitudes so far; a channel with NaN has an infinite one."""
    return tl.maximum(peak, tl.max(tl.where(y == y, tl.abs(y), float("inf")), 0))


@triton.jit
def _largest(  # type: ignore[no-untyped-def]
    x, h, found, count, d, factor, turns, T: tl.constexpr, R: tl.constexpr, M: tl.constexpr,
    WIDE: tl.constexpr,
):  # fmt: skip
    channel = tl.program_id(1) * M * R
    peak_a = tl.zeros((R,), tl.float32)
    peak_b = peak_a
    peak_e = peak_a
    peak_f = peak_a
    for turn in range(turns):
        token = (tl.program_id(0) * turns + turn) * T + tl.arange(0, T)
        a, b, e, f = _rotated(x, h, token, channel, count, d, R, M, WIDE)
        peak_a = _larger(peak_a, a)
        if M > 1:
            peak_b = _larger(peak_b, b)
        if M > 2:
            peak_e = _larger(peak_e, e)
            peak_f = _larger(peak_f, f)
    place = found + tl.program_id(0).to(tl.int64) * d + channel + tl.arange(0, R)
    tl.store(place, peak_a * factor)
    if M > 1:
        tl.store(place + R, peak_b * factor)
    if M > 2:
        tl.store(place + 2 * R, peak_e * factor)
        tl.store(place + 3 * R, peak_f * factor)


@triton.jit
def _code(  # type: ignore[no-untyped-def]
    y, peak, made, token, channel, count, d, factor, nudge, FLOOR: tl.constexpr,
    LEVELS: tl.constexpr, R: tl.constexpr,
):  # fmt: skip
    column = channel + tl.arange(0, R)
    step = (tl.maximum(tl.load(peak + column), FLOOR) / LEVELS)[None, :]
    code = y * factor / (step / nudge)
    code = (code + WHOLE) - WHOLE  # none is past the peak: nothing to clip
    place = made + token[:, None].to(tl.int64) * d + column[None, :]
    tl.store(place, (code * step).to(made.dtype.element_ty), (token < count)[:, None])


@triton.jit
def _to_grid(  # type: ignore[no-untyped-def]
    x, h, peak, made, count, d, factor, nudge, FLOOR: tl.constexpr, LEVELS: tl.constexpr,
    T: tl.constexpr, R: tl.constexpr, M: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0) * T + tl.arange(0, T)
    channel = tl.program_id(1) * M * R
    a, b, e, f = _rotated(x, h, token, channel, count, d, R, M, WIDE)
    _code(a, peak, made, token, channel, count, d, factor, nudge, FLOOR, LEVELS, R)
    if M > 1:
        _code(b, peak, made, token, channel + R, count, d, factor, nudge, FLOOR, LEVELS, R)
    if M > 2:
        channel += 2 * R
        _code(e, peak, made, token, channel, count, d, factor, nudge, FLOOR, LEVELS, R)
        _code(f, peak, made, token, channel + R, count, d, factor, nudge, FLOOR, LEVELS, R)


def largest(x: Tensor, h: Tensor, n: int, found: Tensor) -> None:
    """Write the largest magnitudes; arguments as for `rotated.largest`."""
    blocks = triton.cdiv(len(x), rotated.TOKENS)
    _launch(_largest, x, h, (found,), n, len(found), triton.cdiv(blocks, len(found)))


def to_grid(
    x: Tensor, h: Tensor, peak: Tensor, n: int, bits: int, nudge: float, made: Tensor
) -> None:
    """Write x̂; arguments as for `rotated.to_grid`."""
    levels = {"FLOOR": grid.FLOOR, "LEVELS": 2 ** (bits - 1) - 1}
    programs = triton.cdiv(len(x), rotated.TOKENS)
    _launch(_to_grid, x, h, (peak, made), n, programs, nudge, **levels)


def _launch(
    kernel: Any, x: Tensor, h: Tensor, others: tuple[Tensor, ...], n: int, programs: int,
    *numbers: float, **fixed: float,
) -> None:  # fmt: skip
    count, d = x.shape
    with torch.cuda.device_of(x):
        kernel[programs, d // n](
            x.contiguous(), h, *others, count, d, n**-0.5, *numbers, **fixed,
            T=rotated.TOKENS, R=len(h), M=n // len(h), WIDE=x.dtype == torch.float32, num_warps=8,
        )  # fmt: skip


def fault(device: torch.device, n: int) -> str | None:
    """Why the kernels do not serve on a device, in one line; None if they do.

    Compares with torch's rotation on a CPU: the largest numbers, and the nearest of the grid.

    Args:
        device: of the inputs.
        n: order of the rotation.
    """
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(rotated.TOKENS * (rotated.SHARES + 1) + 5, 3 * n, generator=generator)
    h = hadamard.signs(min(n, hadamard.WIDEST))
    for given in (x, x.bfloat16()):
        z = hadamard.rotate_fast(given, h, n)
        there = given.to(device)
        peak = rotated.peaks(there, h.to(device), n)
        made = rotated.rounded(there, h.to(device), n, peak, 4, 1.0, torch.float32).cpu()
        far = (made - z).abs() > 0.501 * peak.cpu() / 7
        if far.any() or wrong([peak.cpu()], [z.abs().amax(0)], 1e-5):
            return "wrong numbers"
    return None
