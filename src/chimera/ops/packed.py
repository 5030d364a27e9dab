"""Products with ternary weights that stay packed, two bits each (SPEC Q7).

    y = (Quant(x) · Cᵀ) ⊙ step ⊙ scale + b

C is packed by rows (`two_bits`). Kernels: `ternary.cpp` for a CPU, `packed_triton` for a GPU.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int8, Int32, UInt8
from torch import Tensor

from chimera.ops.grid import FLOOR
from chimera.ops.integer import product as codes_product
from chimera.ops.kernels import gpu
from chimera.ops.native import library
from chimera.ops.two_bits import LANES

#: The GPU's module, and what happens where it does not serve.
KERNELS = "packed_triton", "packed layers multiply codes of one byte"
#: Width from which the GPU's sums could exceed 32 bits.
WIDEST = 2**18


def product(
    a: Int8[Tensor, "m k"], packed: UInt8[Tensor, "n bytes"]
) -> Int32[Tensor, "m n"] | None:
    """A·Cᵀ by the CPU's kernel, or on a GPU of unpacked codes; None without kernels."""
    on_gpu = gpu(a.device, *KERNELS)
    if on_gpu is not None:
        return codes_product(a, on_gpu.unpacked(packed, a.shape[1]))
    kernels = library() if a.is_cpu else None
    if kernels is None:
        return None
    a = F.pad(a, (0, packed.shape[1] * LANES - a.shape[1])).contiguous()
    out = torch.empty(len(a), len(packed), dtype=torch.int32)
    kernels.product(
        kernels.path, torch.get_num_threads(), a.data_ptr(), len(a), a.shape[1], packed.data_ptr(),
        len(packed), out.data_ptr(),
    )  # fmt: skip
    return out


def linear(
    x: Float[Tensor, "*b k"],
    packed: UInt8[Tensor, "n bytes"],
    scale: Tensor,
    bias: Float[Tensor, " n"] | None,
    *,
    bits: int,
    eps: float | None = None,
    nudge: float = 1.0,
) -> Float[Tensor, "*b n"] | None:
    """Grid per token, product and scales in one kernel; None where it does not serve.

    Args:
        x: inputs; the kernel serves float32 on a CPU.
        packed: codes of the weight.
        scale: of the weight, [] or [n 1].
        bias: added at the end.
        bits: of the activation grid (`ops.grid.to_grid`).
        eps: of an RMSNorm before the grid (`ops.grid.rms_grid`); None for no norm.
        nudge: of the grid.
    """
    suits = x.is_cpu and x.dtype == scale.dtype == torch.float32
    kernels = library() if suits and (bias is None or bias.dtype == torch.float32) else None
    if kernels is None:
        return None
    # One token takes some ten microseconds: `len` of a tensor, a reshape and the like would show.
    x, scale, k, n = x.contiguous(), scale.contiguous(), x.shape[-1], packed.shape[0]
    out = torch.empty((*x.shape[:-1], n))
    kernels.linear(
        kernels.path, torch.get_num_threads(), x.data_ptr(), x.numel() // k, k, eps is not None,
        eps or 0.0, float(2 ** (bits - 1) - 1), nudge, FLOOR, packed.data_ptr(), n,
        scale.data_ptr(), scale.numel(), None if bias is None else bias.data_ptr(), out.data_ptr(),
    )  # fmt: skip
    return out


def scaled(
    a: Int8[Tensor, "m k"],
    step: Float[Tensor, "m 1"],
    packed: UInt8[Tensor, "n bytes"],
    scale: Tensor,
    bias: Float[Tensor, " n"] | None,
    dtype: torch.dtype,
) -> Float[Tensor, "m n"] | None:
    """(A·Cᵀ) ⊙ step ⊙ scale + b by the GPU's kernel for few tokens (`packed_triton`), else None."""
    dtypes = (dtype, step.dtype, scale.dtype, None if bias is None else bias.dtype)
    suits = a.shape[1] < WIDEST and torch.float64 not in dtypes
    kernels = gpu(a.device, *KERNELS) if suits else None
    if kernels is None or len(a) > kernels.FEW:
        return None
    return kernels.scaled(a, step, packed, scale, bias, dtype)
