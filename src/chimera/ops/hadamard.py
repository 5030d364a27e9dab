"""Orthonormal block-diagonal Hadamard rotation (SPEC Q4; QDYT 3.1).

    y = x · diag(H_n, …, H_n),   H_{2m} = H_2 ⊗ H_m,   H_n H_nᵀ = I  after the factor n^−½

n is the largest power of two that divides d (768 = 3 · 256), so that the rotation is exactly
orthogonal for any width. H_n is symmetric, so that the backward pass is the same rotation.
The result is float32 or wider. Shapes: [… d] to [… d].
"""

from __future__ import annotations

from typing import Any

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor
from torch.autograd import Function

from chimera.ops.kernels import operation
from chimera.ops.precision import HALF, autocast_off, output_dtype, wide, widen
from chimera.ops.together import few_kernels

#: Order of H below which one small matrix product is faster than butterflies (on one CPU core).
RADIX = 16
#: Orders of the first product and, in a compiled graph, of the others: it fuses sums of four.
WIDEST = 64
NARROW = 4
#: Order up to which a GPU computes a product in half precision in the time of a few stages.
LARGEST = 1024


def block(d: int) -> int:
    """Largest power of two that divides d."""
    return d & -d


def signs(n: int, device: torch.device | None = None) -> Float[Tensor, "n n"]:
    """Sylvester's Hadamard matrix of order n, a power of two, with entries ±1 (not normalised).

    H_ij = −1 if i and j have an odd number of bits in common.
    """
    index = torch.arange(n, device=device)
    common = index[:, None] & index
    for bits in (16, 8, 4, 2, 1):
        common = common ^ (common >> bits)
    return 1.0 - 2.0 * (common & 1)


def rotate_dense(x: Float[Tensor, "*b d"], h: Float[Tensor, "n n"]) -> Float[Tensor, "*b d"]:
    """Multiply x by H as in the paper, O(d·n); `h` = signs(block(d))."""
    with autocast_off(x):
        y = rearrange(widen(x), "... (m n) -> ... m n", n=len(h)) @ h.to(wide(x))
    return rearrange(y, "... m n -> ... (m n)") * len(h) ** -0.5


def rotate_fast(
    x: Float[Tensor, "*b d"],
    h: Float[Tensor, "r r"],
    n: int,
    made: Float[Tensor, "*b d"] | None = None,
) -> Float[Tensor, "*b d"]:
    """Compute the same numbers in O(d·log n) on a CPU; `h` = signs(min(n, WIDEST)).

    One product with H_r computes the lowest log2 r stages. Each higher stage adds and subtracts
    contiguous halves at distance r, 2r, …. On a GPU and in a compiled graph, products with parts
    of `h` compute the higher stages too: H_{m·r} = H_m ⊗ H_r. A compiled graph
    rotates x in half precision by one such product, which is exact: entries are ±1, sums float32.
    Under autocast it first rounds the gradient to half precision, as other products do.

    `made`, if given, is returned in place of x·H, with its gradient (`ops.rotated`).
    """
    return _Butterfly.apply(x, h, n, made)


class _Butterfly(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, h: Tensor, n: int, made: Tensor | None) -> Tensor:
        ctx.save_for_backward(h)
        ctx.n, ctx.dtype = n, x.dtype
        ctx.half = output_dtype(x) if torch.compiler.is_compiling() else wide(x)
        return rotate_to(x, h, n, wide(x)) if made is None else made.view_as(made)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        (g,) = grads
        g = g.to(ctx.half) if ctx.half in HALF else g
        return rotate_to(g, ctx.saved_tensors[0], ctx.n, ctx.dtype), None, None, None


def rotate_to(x: Tensor, h: Tensor, n: int, dtype: torch.dtype) -> Tensor:
    """x·H in `dtype`, without a gradient; arguments as for `rotate_fast`."""
    if few_kernels(x):  # in place, each stage takes three
        return _products(x, h, n, dtype)
    h = h[:RADIX, :RADIX]  # Sylvester's matrix of that order
    with autocast_off(x):
        y = widen(x).reshape(-1, len(h)) @ (h.to(wide(x)) * n**-0.5)  # sums over n values
    stride = len(h)
    while stride < n:
        a, b = y.view(-1, 2, stride).unbind(1)
        a.add_(b)
        b.mul_(-2).add_(a)  # a already holds a + b, and (a + b) − 2b = a − b; 2b is exact
        stride *= 2
    return y.view(x.shape).to(dtype)


def _products(x: Tensor, h: Tensor, n: int, dtype: torch.dtype) -> Tensor:
    sums = torch.compiler.is_compiling()
    with autocast_off(x):
        if sums and x.dtype in HALF and n <= LARGEST:
            exact = n.bit_length() % 2 == 1  # n^−½ is a power of 2, exact in half precision
            matrix = signs(n, x.device) * (n**-0.5 if exact else 1)
            factors = x.reshape(-1, n), matrix.to(x.dtype)
            y = torch.mm(*factors) if dtype == x.dtype else half_product(*factors)
            return (y if exact else y * n**-0.5).view(x.shape)
        # Made anew in a graph, where layers with the same input then share what they compute.
        h = (signs(len(h), x.device) if sums else h).to(wide(x))
        y = widen(x).reshape(-1, len(h)) @ (h * n**-0.5)
        stride = len(h)
        while stride < n:
            order = min(n // stride, NARROW if sums else len(h))
            y = y.view(-1, order, stride)
            part = h[:order, :order]
            y = (part[..., None] * y[:, None]).sum(2) if sums else part @ y
            stride *= order
    return y.view(x.shape).to(dtype)


@torch.library.custom_op(operation(__name__, "half_product"), mutates_args=())
def half_product(x: Tensor, h: Tensor) -> Tensor:
    """x h of two matrices in half precision, summed and returned in float32."""
    if x.is_cuda:
        return torch.mm(x, h, out_dtype=torch.float32)
    return x.float() @ h.float()


@half_product.register_fake
def _(x: Tensor, h: Tensor) -> Tensor:
    return x.new_empty((x.shape[0], h.shape[1]), dtype=torch.float32)
