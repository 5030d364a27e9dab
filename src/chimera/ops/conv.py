"""Causal depthwise convolution over time, with a recurrent state (`tail`) and padding.

    y_t = bias + Σ_j w_j ⊙ x_{t−k+1+j},   j = 0 … k−1

(Mamba arXiv 2312.00752; SAIDL 2.7; SPEC M8, M14.) Computes k shifted products. For short kernels
this is faster than `conv1d` forward and backward and needs no transposition. Accumulates in
float32 or wider. The backward pass adds to parts of one tensor: autograd would make one of zeros,
as long as the sequence, for each tap.

On a GPU, whole sequences without padding go through two kernels of our own (`conv_triton`), which
read and write each number once; CHIMERA_KERNELS=0 turns them off.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.autograd import Function

from chimera.ops.kernels import constant, gpu, operation
from chimera.ops.precision import HALF, wide

#: Tokens and channels of a program of the kernels, and the most taps that they serve.
TOKENS, CHANNELS, MOST = 32, 64, 8


def _rows(x: Float[Tensor, "b t d"], index: Int[Tensor, "b s"]) -> Float[Tensor, "b s d"]:
    """x[i, index[i]], by copies of whole rows: much faster than `gather`, forward and backward."""
    start = torch.arange(x.shape[0], device=x.device)[:, None] * x.shape[1]
    return x.flatten(0, 1).index_select(0, (index + start).flatten()).view(*index.shape, -1)


def _order(mask: Bool[Tensor, "b t"]) -> Int[Tensor, "b t"]:
    """Permutation that moves padding to the front and keeps real tokens in order."""
    return mask.to(torch.uint8).argsort(dim=1, stable=True)


def causal_conv(
    x: Float[Tensor, "b t d"],
    weight: Float[Tensor, "d k"],
    bias: Float[Tensor, " d"] | None = None,
    tail: Float[Tensor, "b tail d"] | None = None,
    mask: Bool[Tensor, "b t"] | None = None,
    *,
    silu: bool = False,
) -> tuple[Float[Tensor, "b t d"], Float[Tensor, "b tail d"]]:
    """Convolve `x` and return the last k−1 real inputs.

    Args:
        x: inputs.
        weight: one kernel of k taps per channel; the last tap is for the current token.
        bias: one number per channel.
        tail: the k−1 inputs before `x`; None for zeros, the start of a sequence.
        mask: True for real tokens. Padding is skipped at any place, as if real tokens were
            adjacent; outputs at padding are finite and meaningless.
        silu: return SiLU(y).

    Returns:
        y in the dtype of `x`, and `tail` for the next call.
    """
    t, k = x.shape[1], weight.shape[1]
    if tail is None and mask is None and serves(x, k):
        last = F.pad(x[:, max(t - k + 1, 0) :], (0, 0, max(k - 1 - t, 0), 0))
        return by_kernels(x, weight, bias, silu=silu), last.clone()
    before = x.new_zeros(x.shape[0], k - 1, x.shape[2]) if tail is None else tail.to(x.dtype)
    padded = torch.cat([before, x], 1)
    if mask is not None:
        # Order: padding, tail, real tokens. Then a real token directly follows its k−1 inputs.
        padded = _rows(padded, _order(F.pad(mask, (k - 1, 0), value=True)))
    y = by_torch(padded, weight.to(wide(x)), bias)
    if mask is not None:
        y = _rows(y, _order(mask).argsort(dim=1))
    # A copy, because a view would keep the whole sequence in memory.
    return F.silu(y) if silu else y, padded[:, t:].clone()


def serves(x: Float[Tensor, "b t d"], taps: int) -> bool:
    """True if the kernels compute these inputs: float32 or half, a GPU, a few taps."""
    suits = x.dtype in (torch.float32, *HALF) and x.numel() > 0 and 1 < taps <= MOST
    return suits and sound(x.device, taps)


@constant
def sound(device: torch.device, taps: int) -> bool:
    """Whether the kernels compute right numbers with so many taps on a device."""
    return gpu(device, "conv_triton", "convolutions are computed by torch", taps) is not None


def by_torch(
    padded: Float[Tensor, "b s d"], weight: Float[Tensor, "d k"], bias: Float[Tensor, " d"] | None
) -> Float[Tensor, "b t d"]:
    """y of a sequence with its k−1 inputs before."""
    y: Tensor = _Taps.apply(padded, weight, bias)
    return y


def by_kernels(
    x: Float[Tensor, "b t d"],
    weight: Float[Tensor, "d k"],
    bias: Float[Tensor, " d"] | None,
    *,
    silu: bool,
) -> Float[Tensor, "b t d"]:
    """y, or SiLU(y), of a whole sequence by the kernels."""
    bias = None if bias is None else bias.float().contiguous()
    return forward(x, weight.float().contiguous(), bias, silu)


@torch.library.custom_op(operation(__name__, "short_conv"), mutates_args=())
def forward(x: Tensor, weight: Tensor, bias: Tensor | None, silu: bool) -> Tensor:
    """y in the dtype of x; taps [d k] and bias are float32."""
    y = _like(x)
    _kernels().forward(x, weight, bias, silu, y)
    return y


@torch.library.custom_op(operation(__name__, "short_conv_backward"), mutates_args=())
def backward(
    dy: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, silu: bool
) -> tuple[Tensor, Tensor]:
    """Gradients of x, and for each program of taps and, last, bias: [b programs k+1 d]."""
    dx, dtaps = _gradients(dy, x, weight, bias, silu)
    _kernels().backward(dy, x, weight, bias, silu, dx, dtaps)
    return dx, dtaps


@forward.register_fake
def _like(x: Tensor, *_: Any) -> Tensor:
    return x.new_empty(x.shape)


@backward.register_fake
def _gradients(dy: Tensor, x: Tensor, weight: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    (b, t, d), k = x.shape, weight.shape[1]
    return _like(x), weight.new_empty(b, -(-t // TOKENS), k + 1, d)


def _keep(ctx: Any, inputs: Any, output: Any) -> None:
    *given, ctx.silu = inputs
    ctx.save_for_backward(*given)


def _differentiate(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    x, weight, bias = ctx.saved_tensors
    dx, apart = backward(dy, x, weight, bias, ctx.silu)
    *taps, last = apart.sum((0, 1)).unbind(0)
    return dx, torch.stack(taps, 1), None if bias is None else last, None


forward.register_autograd(_differentiate, setup_context=_keep)


def _kernels() -> ModuleType:
    return import_module("chimera.ops.conv_triton")


class _Taps(Function):
    """Σ_j w_j ⊙ x_{t+j} + bias of a sequence with its k−1 inputs before, [b t+k−1 d] to [b t d]."""

    @staticmethod
    def forward(ctx: Any, padded: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(padded, weight)
        ctx.bias = None if bias is None else bias.dtype
        t = padded.shape[1] - weight.shape[1] + 1
        taps = weight.unbind(1)
        y = padded[:, :t] * taps[0] if bias is None else torch.addcmul(bias, padded[:, :t], taps[0])
        for j, tap in enumerate(taps[1:], 1):
            y.addcmul_(padded[:, j : j + t], tap)
        return y.to(padded.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        padded, weight = ctx.saved_tensors
        t, k = grads[0].shape[1], weight.shape[1]
        if torch.compiler.is_compiling():
            far = F.pad(grads[0], (0, 0, k - 1, k - 1))
            far = far.as_strided(far.shape, far.stride())  # computed once, not for every tap
            g = far[:, k - 1 : k - 1 + t].to(weight.dtype)
            shifted = [far[:, k - 1 - j : t + 2 * (k - 1) - j] * weight[:, j] for j in range(k)]
            of_padded = sum(shifted[1:], start=shifted[0]).to(padded.dtype)
            parts = [(g * padded[:, j : j + t]).sum((0, 1)) for j in range(k)]
            of_taps = torch.stack(parts, 1)
        else:  # parts of one tensor; a graph would make it anew for every tap
            g = grads[0].to(weight.dtype)
            of_padded, of_taps = torch.zeros_like(padded), torch.empty_like(weight)
            product = torch.empty_like(g)
            for j in range(k - 1, -1, -1):  # the order in which autograd adds
                part = slice(j, j + t)
                of_padded[:, part] += torch.mul(g, weight[:, j], out=product).to(padded.dtype)
                of_taps[:, j] = torch.mul(g, padded[:, part], out=product).sum((0, 1))
        return of_padded, of_taps, None if ctx.bias is None else g.sum((0, 1)).to(ctx.bias)
