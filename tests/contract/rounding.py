"""float32 with random changes of the size of half precision's roundings, where those may happen.

    with Roundings(torch.float16, times=2, seed=0):
        loss = model(ids)
        loss.backward()

A rounding to nearest changes x by at most u·|x| + s: u = eps/2 (fp16 2⁻¹¹, bf16 2⁻⁸), s half the
smallest subnormal number (fp16 2⁻²⁵). Autocast rounds inputs, weights and results of linear maps
and of softmax attention, and their gradients. Each of these is changed by up to `times` as much.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

#: Functions that autocast computes in half precision, and the number of their tensors.
ROUNDED = {F.linear: 2, torch.bmm: 2, F.scaled_dot_product_attention: 3}


class Roundings(TorchFunctionMode):
    """Changes tensors as roundings to `dtype` do, `times` as much, by draws of this seed.

    A change depends on the number that is rounded and on nothing else, as a rounding does: a text
    that repeats one token has the same error in each token, and its sums do not average it out.
    """

    def __init__(self, dtype: torch.dtype, *, times: float, seed: int) -> None:
        super().__init__()
        info = torch.finfo(dtype)
        self.u = times * info.eps / 2
        self.s = times * info.smallest_normal * info.eps / 2
        self.seed = seed

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func not in ROUNDED:
            return func(*args, **kwargs)
        mask = kwargs.get("attn_mask")
        if mask is not None and mask.is_floating_point():
            kwargs = {**kwargs, "attn_mask": _Changed.apply(mask, self)}
        count = ROUNDED[func]
        changed = [_Changed.apply(x, self) for x in args[:count]]
        return _Changed.apply(func(*changed, *args[count:], **kwargs), self)

    def change(self, x: Tensor, s: float) -> Tensor:
        """x with relative changes up to u and absolute ones up to s; 0 and infinity stay."""
        changed = x + x * (self.u * self.hashed(x, 1)) + s * self.hashed(x, 2)
        return torch.where((x == 0) | x.isinf(), x, changed)

    def hashed(self, x: Tensor, salt: int) -> Tensor:
        """Numbers in [−1, 1), equal where x is equal, otherwise as if drawn independently."""
        bits = x.contiguous().view(torch.int32).long() + (2 * self.seed + salt) * 0x9E3779B9
        bits = bits & 0xFFFFFFFF
        for factor, shift in ((0x7FEB352D, 16), (0x846CA68B, 15), (0x9E3779B1, 16)):
            bits = ((bits ^ (bits >> shift)) * factor) & 0xFFFFFFFF
        return (bits / 2**31 - 1).to(x.dtype)


class _Changed(torch.autograd.Function):
    """Changes a tensor in the forward pass and its gradient in the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, roundings: Roundings) -> Tensor:
        ctx.roundings = roundings
        return roundings.change(x, roundings.s)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return ctx.roundings.change(grads[0], 0.0), None
