"""Products of integer codes, exact, with the gradients of the rounded factors (SPEC Q2-Q6).

    y = (A·Cᵀ) ⊙ step ⊙ scale,   x̂ = A ⊙ step,   Ŵ = C ⊙ scale
    ∂L/∂x̂ = g·Ŵ,   ∂L/∂Ŵ = gᵀ·x̂                              (straight-through, arXiv 1308.3432)

A holds activation codes with a step per token, C weight codes with one scale or one per row. The
sums are integers below 2³¹ (k < 2¹⁷ at 8 bits), so no order of summation changes them. Three
arithmetics give A·Cᵀ:

    int8    torch._int_mm, int32 sums. A CPU without VNNI runs it as a plain loop, 40 times slower
            than a float32 product, and oneDNN told to use old instructions adds pairs of products
            in 16 bits, which overflow. There the codes are multiplied as float32, which is exact
            for ternary codes up to a width of 2²⁴/127 = 132,104
    bf16    bfloat16 codes (exact to 256), float32 sums, the result rounded to bfloat16 (2⁻⁹)

Backward products run in the precision of the output, on x̂ and Ŵ made again from the codes: a layer
keeps one byte per activation for them, not four. Shapes: A [… i], C [o i], y [… o].
"""

from __future__ import annotations

from functools import cache
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int8
from torch import Tensor
from torch.autograd import Function

from chimera.ops.grid import for_same, rms_gradient
from chimera.ops.precision import autocast_off, wide

#: How products of codes are computed; `simulate` multiplies the rounded factors as floats.
Arithmetic = Literal["simulate", "int8", "bf16"]
#: Sizes that torch._int_mm takes on a GPU: more than 16 rows, inner and outer multiples of 8.
GPU_ROWS, GPU_MULTIPLE = 17, 8


class Grid(NamedTuple):
    """Activations on a grid per token: codes [… i], step [… 1], and 1/RMS [… 1] of a norm inside.

    With `rstd`, the gradient of the inputs is that of x·rstd.
    """

    codes: Int8[Tensor, "*b i"]
    step: Float[Tensor, "*b 1"]
    rstd: Float[Tensor, "*b 1"] | None = None


class Codes(NamedTuple):
    """Weight codes [o i] in the dtype of the product, and their scale, [] or [o 1]."""

    codes: Tensor
    scale: Tensor


def prepared(codes: Tensor, scale: Tensor, compute: Arithmetic) -> Codes:
    """Weight codes in the dtype in which they are multiplied."""
    return Codes(codes.to(product_dtype(codes.device, compute)), scale)


def product_dtype(device: torch.device, compute: Arithmetic) -> torch.dtype:
    """Dtype of the factors of a product of codes."""
    if compute == "bf16":
        return torch.bfloat16
    fast = device.type == "cuda" or (device.type == "cpu" and _cpu_multiplies_int8())
    return torch.int8 if fast else torch.float32


@cache
def _cpu_multiplies_int8() -> bool:
    """Whether the CPU multiplies int8 fast, and exactly, as ONEDNN_MAX_CPU_ISA may forbid."""
    if not torch.cpu.get_capabilities().get("avx512_vnni"):
        return False
    largest = torch.full((16, 64), 127, dtype=torch.int8)
    return bool((torch._int_mm(largest, largest.T) == 64 * 127**2).all())


def product(a: Tensor, c: Tensor) -> Tensor:
    """A·Cᵀ of codes in the dtype of C: int32 sums of int8, float sums of other dtypes.

    Args:
        a: [m i], of any dtype.
        c: [o i].
    """
    a = a.to(c.dtype)
    if c.dtype != torch.int8:
        return a @ c.T
    if a.is_cuda:
        rows, inner, outer = len(a), a.shape[1], len(c)
        a = F.pad(a, (0, -inner % GPU_MULTIPLE, 0, max(0, GPU_ROWS - rows)))
        c = F.pad(c, (0, -inner % GPU_MULTIPLE, 0, -outer % GPU_MULTIPLE))
        return torch._int_mm(a, c.T)[:rows, :outer]
    return torch._int_mm(_with_row_stride(a), _with_row_stride(c.T))


def _with_row_stride(x: Tensor) -> Tensor:
    """The same matrix with a row stride of its width.

    The stride of a dimension of size 1 is arbitrary. Where it is less than the width, oneDNN
    refuses the product, and torch 2.13 hands the result back unwritten (pytorch issue 195066).
    """
    return x.as_strided(x.shape, (x.shape[1], 1)) if x.is_contiguous() else x


def integer_linear(
    x: Float[Tensor, "*b i"],
    weight: Float[Tensor, "o i"],
    grid: Grid,
    codes: Codes,
    *,
    dtype: torch.dtype,
    divisor: Tensor | None = None,
) -> Float[Tensor, "*b o"]:
    """x̂ Ŵᵀ from the codes of both factors.

    Args:
        x: what was rounded; gets the gradient of x̂, or of x·rstd if the grid has `rstd`.
        weight: what was rounded to `codes`; gets the gradient of Ŵ.
        grid: codes of x.
        codes: codes of the weight.
        dtype: of the result and of the products of the backward pass.
        divisor: if given, the weight's gradient is divided by it (SPEC E7).
    """
    return _IntegerLinear.apply(x, weight, *grid, *codes, divisor, dtype)


class _IntegerLinear(Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        a: Tensor,
        step: Tensor,
        rstd: Tensor | None,
        c: Tensor,
        scale: Tensor,
        divisor: Tensor | None,
        dtype: torch.dtype,
    ) -> Tensor:
        ctx.dtypes = x.dtype, weight.dtype, dtype
        ctx.save_for_backward(None if rstd is None else x, a, step, rstd, c, scale, divisor)
        with autocast_off(x):
            sums = product(a.flatten(0, -2), c).view(*a.shape[:-1], len(c))
            sums = sums.to(wide(step))
            # One pass over the result for one scale, two for a scale per row.
            y = sums.mul_(step * scale) if not scale.ndim else sums.mul_(step).mul_(scale.T)
        return y.to(dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, a, step, rstd, c, scale, divisor = ctx.saved_tensors
        of_x, of_weight, dtype = ctx.dtypes
        g, grad_x, grad_weight = grads[0].to(dtype), None, None
        with autocast_off(g):
            if ctx.needs_input_grad[0]:
                grad_x = (g @ _times(c, scale, dtype)).to(of_x)
                if rstd is not None:
                    grad_x = rms_gradient(grad_x, x, rstd)
            if ctx.needs_input_grad[1]:
                # Layers with the same input share its codes.
                rounded = for_same(a, (dtype,), lambda: (_times(a, step, dtype),))[0]
                grad_weight = (g.flatten(0, -2).T @ rounded.flatten(0, -2)).to(of_weight)
                if divisor is not None:
                    grad_weight = (grad_weight / divisor).to(of_weight)
        return grad_x, grad_weight, *(None,) * 7


def _times(codes: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """Codes times their scale, computed in float32 or wider."""
    values = torch.empty_like(codes, dtype=wide(scale)).copy_(codes)
    return values.mul_(scale).to(dtype)
