"""Precision of the numbers that half precision cannot hold, whatever autocast says.

States, sums over tokens, norms, softmax statistics, gates and routers are computed in float32 (in
float64 if an input has it). fp16 ends at 65504, which a sum over 1000 tokens passes, and at 6e-8,
which an ε of 1e-12 does not reach: 0/0 is NaN. bf16 has 8 bits, so that a sum stops growing after
256 equal terms. The idiom, in `ops` and in components:

    with autocast_off(x):                  products stay in the dtype of their factors
        y = f(widen(x))                    `widen` one tensor, or `x.to(wide(x, v))` for several
    return y                               wide; a component returns `y.to(x.dtype)`
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from jaxtyping import Bool, Float
from torch import Tensor

#: Half precision.
HALF = (torch.float16, torch.bfloat16)


def autocast_off(x: Tensor) -> AbstractContextManager[object]:
    """Context without autocast on x's device; does nothing on the meta device (no autocast)."""
    if x.is_meta:
        return nullcontext()
    return torch.autocast(x.device.type, enabled=False)


def wide(*tensors: Tensor) -> torch.dtype:
    """Dtype for statistics of these tensors: float32, or float64 if one of them is float64."""
    dtype = torch.float32
    for tensor in tensors:
        dtype = torch.promote_types(dtype, tensor.dtype)
    return dtype


def widen(x: Tensor) -> Tensor:
    """x in float32 or wider; x itself if it is."""
    return x if x.dtype == torch.float32 else x.to(wide(x))


def token_sum(
    x: Float[Tensor, "b t d"], mask: Bool[Tensor, "b t"] | None
) -> tuple[Float[Tensor, " d"], Float[Tensor, ""]]:
    """Sum over the real tokens in float32 or wider, [d], and their number."""
    if mask is None:
        count = torch.full((), x.shape[0] * x.shape[1], dtype=wide(x), device=x.device)
        return x.sum((0, 1), dtype=wide(x)), count
    real = x.masked_fill(~mask[..., None], 0.0)
    return real.sum((0, 1), dtype=wide(x)), mask.sum().to(wide(x))


def output_dtype(x: Tensor) -> torch.dtype:
    """Dtype of a product with x: that of autocast on its device, else its own."""
    if x.is_meta or not torch.is_autocast_enabled(x.device.type) or x.dtype == torch.float64:
        return x.dtype
    return torch.get_autocast_dtype(x.device.type)
