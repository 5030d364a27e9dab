"""Round activations to an integer grid scaled by their largest magnitude (SPEC Q6).

    x̂ = clip(round(x / s), −2^{n−1}, 2^{n−1} − 1) · s,   s = max|x| / (2^{n−1} − 1)

The caller chooses the maximum: per token or per channel. QDYT 3.2 adds ε to s; this code clamps
max|x| from below, as BitNet does. Shapes: [… d] to [… d].

Behind a quantised layer x is whole numbers times a scale, so that x / s is often a half, and noise
in its last bits decides the code. `nudge` is a factor of x / s before rounding: 1, or `AWAY`, which
sends halves away from zero whatever that noise.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from jaxtyping import Float, Int8
from torch import Tensor
from torch.autograd import Function

from chimera.ops.kernels import gpu
from chimera.ops.precision import HALF, wide

#: Factor that sends halves away from zero: far from 1 for float32's noise, near for a code.
AWAY = 1 + 2**-18
FLOOR = 1e-5  # smallest max|x|, because a token of zeros has no scale (BitNet's value)


@torch.no_grad()
def to_grid(
    x: Float[Tensor, "*b d"], peak: Tensor, bits: int, nudge: float = 1.0, *, clip: bool = False
) -> Float[Tensor, "*b d"]:
    """Round x to the n-bit grid whose last point is `peak` (broadcast to x).

    With `clip`, values beyond the grid become its ends; a peak of x itself leaves none there.
    """
    rounded, step = _rounded(x, peak, bits, nudge)
    if clip:
        rounded.clamp_(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    return rounded.mul_(step).to(x.dtype)


@torch.no_grad()
def to_codes(
    x: Float[Tensor, "*b d"], bits: int, nudge: float = 1.0
) -> tuple[Int8[Tensor, "*b d"], Tensor]:
    """Codes and step [… 1] of `to_grid` with the largest magnitude of each token."""
    kernels = _kernels(x)
    if kernels is not None:
        codes, step, _ = kernels.rounded(x, bits, None, nudge)
        return codes, step
    rounded, step = _rounded(x, x.abs().amax(-1, keepdim=True), bits, nudge)
    return rounded.to(torch.int8), step


def _rounded(x: Tensor, peak: Tensor, bits: int, nudge: float) -> tuple[Tensor, Tensor]:
    levels = 2 ** (bits - 1) - 1
    step = peak.to(wide(x)).clamp(min=FLOOR) / levels
    return (x / (step / nudge)).round_(), step


def rms_grid(
    x: Float[Tensor, "*b d"],
    bits: int,
    eps: float,
    dtype: torch.dtype | None = None,
    nudge: float = 1.0,
) -> Float[Tensor, "*b d"]:
    """Round x̄ = x / √(mean x² + eps) to a grid per token; the gradient is that of x̄.

    One function does both steps, so that the scale of a token is applied once. The result has
    `dtype`, or that of x. Calls in a row with the same x share it: do not write to it.
    """
    dtype = x.dtype if dtype is None else dtype

    def make() -> tuple[Tensor, ...]:
        rounded, step, rstd = _rms_rounded(x, bits, eps, nudge)
        return rounded.mul_(step).to(dtype), rstd

    return _RMSGrid.apply(x, *for_same(x, (bits, eps, dtype, nudge), make))


@torch.no_grad()
def rms_codes(
    x: Float[Tensor, "*b d"], bits: int, eps: float, nudge: float = 1.0
) -> tuple[Int8[Tensor, "*b d"], Tensor, Tensor]:
    """Codes of `rms_grid`, their step [… 1] and rstd = 1/√(mean x² + eps) [… 1]."""

    def make() -> tuple[Tensor, ...]:
        kernels = _kernels(x)
        if kernels is not None:
            made: tuple[Tensor, ...] = kernels.rounded(x, bits, eps, nudge)
            return made
        rounded, step, rstd = _rms_rounded(x, bits, eps, nudge)
        return rounded.to(torch.int8), step, rstd

    codes, step, rstd = for_same(x, (bits, eps, torch.int8, nudge), make)
    return codes, step, rstd


def _kernels(x: Tensor) -> ModuleType | None:
    """Kernels in Triton that compute these codes; a compiled graph fuses torch's own."""
    if torch.compiler.is_compiling() or x.dtype not in (torch.float32, *HALF):
        return None
    return gpu(x.device, "grid_triton", "codes of activations are computed by torch")


def rms_gradient(
    g: Float[Tensor, "*b d"], x: Float[Tensor, "*b d"], rstd: Float[Tensor, "*b 1"]
) -> Float[Tensor, "*b d"]:
    """Gradient of x where that of x̄ = x·rstd is g: rstd·g − x·rstd³·mean(g ⊙ x)."""
    along = (g * x).sum(-1, keepdim=True, dtype=rstd.dtype) / x.shape[-1]
    return (g * rstd).addcmul_(x, rstd.pow(3) * along, value=-1).to(x.dtype)


def _rms_rounded(x: Tensor, bits: int, eps: float, nudge: float) -> tuple[Tensor, Tensor, Tensor]:
    levels = 2 ** (bits - 1) - 1
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=wide(x))
    rstd = (length.square() / x.shape[-1] + eps).rsqrt()
    step = (x.abs().amax(-1, keepdim=True) * rstd).clamp(min=FLOOR) / levels
    return (x * (rstd / step * nudge)).round_(), step, rstd


class _RMSGrid(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, rounded: Tensor, rstd: Tensor) -> Tensor:
        ctx.save_for_backward(x, rstd)
        return rounded.view_as(rounded)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        x, rstd = ctx.saved_tensors
        return rms_gradient(grads[0].to(rstd.dtype), x, rstd), None, None


class _Last(threading.local):
    """What was made last of a tensor; keeps the result of one call, and no input, alive."""

    x: Callable[[], Tensor | None] = staticmethod(lambda: None)
    key: tuple[Any, ...] = ()
    made: tuple[Tensor, ...] = ()


_LAST = _Last()


@torch.no_grad()
def for_same(
    x: Tensor, key: tuple[Any, ...], make: Callable[[], tuple[Tensor, ...]]
) -> tuple[Tensor, ...]:
    """`make()`, or what it returned last for the same x, version of x and key.

    Layers with the same input (q, k, v, gate) so round it once.
    """
    if torch.compiler.is_compiling() or torch.is_inference_mode_enabled() or x.is_inference():
        return make()
    key = (*key, x._version)
    if _LAST.x() is not x or key != _LAST.key:
        _LAST.made = ()  # frees it first
        _LAST.made = make()
        _LAST.x = weakref.ref(x)
        _LAST.key = key
    return _LAST.made
