"""The short convolution of `ops.conv` in two kernels, forward and backward, in Triton.

    p_t = bias + Σ_j w_j ⊙ x_{t−k+1+j},    y = SiLU(p) or p

A program computes some channels of some tokens in float32. The backward pass computes p again, also
of the k−1 tokens that follow, so that it reads x and ȳ and writes x̄ once. Gradients of taps and
bias are written apart for each program, so that results repeat to the bit.

Importing this module imports Triton. `conv` decides whether it serves.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from chimera.ops import conv
from chimera.ops.kernels import last_apart, wrong


@triton.jit
def _inputs(x, token, channel, stride, t, d):  # type: ignore[no-untyped-def]
    real = ((token >= 0) & (token < t))[:, None] & (channel < d)[None, :]
    place = token[:, None].to(tl.int64) * stride + channel[None, :]
    return tl.load(x + place, real, other=0.0).to(tl.float32)


@triton.jit
def _taps(x, weight, bias, token, channel, stride, t, d, K: tl.constexpr, BIAS: tl.constexpr):  # type: ignore[no-untyped-def]
    p = tl.zeros((token.shape[0], channel.shape[0]), tl.float32)
    if BIAS:
        p += tl.load(bias + channel, channel < d, other=0.0)[None, :]
    for j in tl.static_range(K):
        tap = tl.load(weight + channel * K + j, channel < d, other=0.0)
        p += tap[None, :] * _inputs(x, token - (K - 1) + j, channel, stride, t, d)
    return p


@triton.jit(do_not_specialize=["t"])
def _forward(  # type: ignore[no-untyped-def]
    x, weight, bias, y, t, xb, xt, d, UNIT: tl.constexpr, K: tl.constexpr, BIAS: tl.constexpr,
    SILU: tl.constexpr, T: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    batch = tl.program_id(0).to(tl.int64)
    token = tl.program_id(1) * T + tl.arange(0, T)
    channel = tl.program_id(2) * D + tl.arange(0, D)
    p = _taps(x + batch * xb, weight, bias, token, channel, xt * UNIT, t, d, K, BIAS)
    if SILU:
        p *= tl.sigmoid(p)
    real = (token < t)[:, None] & (channel < d)[None, :]
    place = (batch * t + token)[:, None] * d + channel[None, :]
    tl.store(y + place, p.to(y.dtype.element_ty), real)


@triton.jit(do_not_specialize=["t"])
def _backward(  # type: ignore[no-untyped-def]
    dy, x, weight, bias, dx, dtaps, t, yb, yt, xb, xt, d, UNIT: tl.constexpr, K: tl.constexpr,
    BIAS: tl.constexpr, SILU: tl.constexpr, T: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    batch = tl.program_id(0).to(tl.int64)
    token = tl.program_id(1) * T + tl.arange(0, T)
    channel = tl.program_id(2) * D + tl.arange(0, D)
    there = channel < d
    dy += batch * yb
    x += batch * xb
    dtaps += (batch * tl.num_programs(1) + tl.program_id(1)) * (K + 1) * d + channel
    to_x = tl.zeros((T, D), tl.float32)
    for i in tl.static_range(K):  # what the token i later gets
        slope = _inputs(dy, token + i, channel, yt * UNIT, t, d)
        if SILU:
            p = _taps(x, weight, bias, token + i, channel, xt * UNIT, t, d, K, BIAS)
            gate = tl.sigmoid(p)
            slope *= gate * (1 + p * (1 - gate))
        tap = tl.load(weight + channel * K + K - 1 - i, there, other=0.0)
        to_x += tap[None, :] * slope
        if i == 0:
            for j in tl.static_range(K):
                read = _inputs(x, token - (K - 1) + j, channel, xt * UNIT, t, d)
                tl.store(dtaps + j * d, tl.sum(slope * read, 0), there)
            tl.store(dtaps + K * d, tl.sum(slope, 0), there)
    real = (token < t)[:, None] & there[None, :]
    place = (batch * t + token)[:, None] * d + channel[None, :]
    tl.store(dx + place, to_x.to(dx.dtype.element_ty), real)


def forward(x: Tensor, weight: Tensor, bias: Tensor | None, silu: bool, y: Tensor) -> None:
    """Write y; arguments as for `conv.forward`."""
    _launch(_forward, (last_apart(x),), (weight, weight if bias is None else bias, y), bias, silu)


def backward(
    dy: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    silu: bool,
    dx: Tensor,
    dtaps: Tensor,
) -> None:
    """Write gradients as `conv.backward` makes them."""
    given = last_apart(dy), last_apart(x)
    _launch(_backward, given, (weight, weight if bias is None else bias, dx, dtaps), bias, silu)


def _launch(
    kernel: object, strided: tuple[Tensor, ...], others: tuple[Tensor, ...], bias: Tensor | None,
    silu: bool,
) -> None:  # fmt: skip
    b, t, d = strided[0].shape
    strides = [stride for x in strided for stride in x.stride()[:2]]
    # A multiple that the compiler knows, to load neighbours together.
    unit = 8 if all(stride % 8 == 0 for stride in strides[1::2]) else 1
    strides[1::2] = [stride // unit for stride in strides[1::2]]
    grid = b, triton.cdiv(t, conv.TOKENS), triton.cdiv(d, conv.CHANNELS)
    with torch.cuda.device_of(strided[0]):
        kernel[grid](  # type: ignore[index]
            *strided, *others, t, *strides, d, UNIT=unit, K=others[0].shape[1],
            BIAS=bias is not None, SILU=silu, T=conv.TOKENS, D=conv.CHANNELS, num_warps=4,
        )  # fmt: skip


def fault(device: torch.device, k: int) -> str | None:
    """Why the kernels do not serve on a device, in one line; None if they do.

    Compares outputs and gradients with torch's own.

    Args:
        device: of the inputs.
        k: taps.
    """
    generator = torch.Generator().manual_seed(0)
    shapes = (2, conv.TOKENS + 5, conv.CHANNELS + 8), (conv.CHANNELS + 8, k), (conv.CHANNELS + 8,)
    drawn = [torch.randn(shape, generator=generator).to(device) for shape in shapes]
    leaves = [x.requires_grad_() for x in drawn]
    y = F.silu(conv.by_torch(F.pad(leaves[0], (0, 0, k - 1, 0)), *leaves[1:]))
    outputs = conv.by_kernels(*leaves, silu=True), y
    found, right = ((y, *torch.autograd.grad(y.square().sum(), leaves)) for y in outputs)
    return wrong(found, right, 1e-4)
