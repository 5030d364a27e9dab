"""Rotation and a grid per channel in kernels (`rotated_triton`), for a GPU.

    z = x · diag(H_n, …, H_n),   x̂ = round(z / s) · s,   s = peak / (2^{b−1} − 1)

What `hadamard.rotate_fast` and `grid.to_grid` do, without writing z: one kernel rotates x for the
largest magnitudes of each channel, torch takes the largest of these, and one kernel rotates x again
and rounds. Computes in float32; the
gradient is that of the rotation. CHIMERA_KERNELS=0 turns them off.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from torch.autograd import Function

from chimera.ops.hadamard import LARGEST, rotate_fast, rotate_to, signs
from chimera.ops.kernels import constant, gpu, operation
from chimera.ops.precision import HALF

#: Tokens that a program rotates at a time, and the order of the largest product in it.
TOKENS, ORDER = 32, 256
#: Programs that share the tokens in search of the largest numbers, at most. Above ORDER each has
#: one block of tokens, for want of registers.
SHARES = 64


def serves(x: Float[Tensor, "*b d"], n: int) -> bool:
    """True if the kernels compute these inputs: float32 or half, a GPU, orders 16 to 1024."""
    suits = x.dtype in (torch.float32, *HALF) and x.numel() > 0 and 16 <= n <= LARGEST
    return suits and sound(x.device, n)


@constant
def sound(device: torch.device, n: int) -> bool:
    """Whether the kernels compute right numbers with H_n on a device."""
    return gpu(device, "rotated_triton", "rotations are computed by torch", n) is not None


@torch.no_grad()
def peaks(x: Float[Tensor, "*b d"], h: Float[Tensor, "r r"], n: int) -> Float[Tensor, " d"]:
    """Largest magnitude of each channel of z; `h` and n as for `hadamard.rotate_fast`."""
    rows = x.reshape(-1, x.shape[-1])
    return largest(rows, _matrix(rows, h, n), n).amax(0)


def rounded(
    x: Float[Tensor, "*b d"],
    h: Float[Tensor, "r r"],
    n: int,
    peak: Float[Tensor, " d"],
    bits: int,
    nudge: float,
    dtype: torch.dtype,
) -> Float[Tensor, "*b d"]:
    """x̂ in `dtype`; arguments as for `hadamard.rotate_fast` and `grid.to_grid`, |z| ≤ peak."""
    rows = x.detach().reshape(-1, x.shape[-1])
    made = to_grid(rows, _matrix(rows, h, n), peak.float(), n, bits, nudge, dtype)
    return rotate_fast(x, h, n, made.view(x.shape))


def product(
    x: Float[Tensor, "*b d"],
    rounded: Float[Tensor, "*b d"],
    weight: Float[Tensor, "o d"],
    h: Float[Tensor, "r r"],
    n: int,
) -> Float[Tensor, "*b o"]:
    """Product x̂ Wᵀ, where x̂ = `rounded` is x rotated and rounded; W has the type of x̂.

    The gradient of x is (g W) H = g (W H). Rotating W once is cheaper than rotating every token.
    """
    return _Product.apply(x, rounded, weight, h, n)


class _Product(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, rounded: Tensor, weight: Tensor, h: Tensor, n: int) -> Tensor:
        kept = rounded if ctx.needs_input_grad[2] else None
        ctx.save_for_backward(kept, weight if ctx.needs_input_grad[0] else None, h)
        ctx.n = n
        ctx.dtype = x.dtype
        return F.linear(rounded, weight)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (g,) = grads
        rounded, weight, h = ctx.saved_tensors
        dx: Tensor | None = None
        if weight is not None:
            dx = (g @ rotate_to(weight, h, ctx.n, weight.dtype)).to(ctx.dtype)
        dw: Tensor | None = None
        if rounded is not None:
            dw = g.reshape(-1, g.shape[-1]).T @ rounded.reshape(-1, rounded.shape[-1])
        return dx, None, dw, None, None


def _matrix(x: Tensor, h: Tensor, n: int) -> Tensor:
    """H of the kernels' order, ±1, in the type of products; float32 takes three of bf16: exact.

    Triton's interpreter, on a CPU, multiplies no bf16: it takes the same numbers in float32. A
    graph makes one for all layers.
    """
    half = x.dtype if x.dtype in HALF else torch.bfloat16
    h = signs(min(n, ORDER), x.device) if torch.compiler.is_compiling() else h[:n, :n]
    h = h.to(torch.float32 if x.is_cpu else half)
    more = max(min(n, ORDER) // len(h), 1)
    return (h[:more, None, :more, None] * h[:, None]).reshape(more * len(h), -1)


@torch.library.custom_op(operation(__name__, "rotated_peaks"), mutates_args=())
def largest(x: Tensor, h: Tensor, n: int) -> Tensor:
    """Largest |z| of each channel among the tokens of each program [programs d].

    Few programs share the tokens, so that one more kernel finds the largest of all.
    """
    found = _found(x, h, n)
    _kernels().largest(x, h, n, found)
    return found


@largest.register_fake
def _found(x: Tensor, h: Tensor, n: int) -> Tensor:
    blocks = -(-x.shape[0] // TOKENS)
    shares = torch.sym_min(blocks, SHARES) if n <= ORDER else blocks
    return x.new_empty((shares, x.shape[1]), dtype=torch.float32)


@torch.library.custom_op(operation(__name__, "rotated_grid"), mutates_args=())
def to_grid(
    x: Tensor, h: Tensor, peak: Tensor, n: int, bits: int, nudge: float, dtype: torch.dtype
) -> Tensor:
    """x̂ of rows [tokens d]."""
    made = _made(x, h, peak, n, bits, nudge, dtype)
    _kernels().to_grid(x, h, peak, n, bits, nudge, made)
    return made


@to_grid.register_fake
def _made(
    x: Tensor, h: Tensor, peak: Tensor, n: int, bits: int, nudge: float, dtype: torch.dtype
) -> Tensor:
    return x.new_empty(x.shape, dtype=dtype)


def _kernels() -> ModuleType:
    return import_module("chimera.ops.rotated_triton")
