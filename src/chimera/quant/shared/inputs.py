"""Transformations of x before a quantised product: activation grids and rotation (SPEC Q4, Q6).

`PerToken` scales by the largest magnitude over the channels of a token (BitNet, arXiv 2402.17764;
TITAN eq. 36). `PerChannel` scales by the largest magnitude of a channel over all tokens of the
batch (QDYT 3.2). Rounding passes gradients unchanged. Shapes: [… d] to [… d]; leading axes are
tokens.

In half precision, layers norm, rotate and round x in float32 and cast the result once. Two errors
remain. The product casts grid points k·s to half: a share of 2⁻⁸ in bf16, up to half a step
at the ends of an 8-bit grid (k = 127), 2⁻¹¹ in fp16. And x itself, where it is the result of a
linear layer or of attention (inputs of `out` and `down`), was rounded by the same share before it
came here. `docs/dev/half-precision.md` has the share of changed codes.
"""

from __future__ import annotations

from typing import Literal, Protocol, cast, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from chimera.contract_gguf import GGUF, NotInGGUF
from chimera.ops import reduce, rotated
from chimera.ops.grid import AWAY, rms_codes, rms_grid, to_codes, to_grid
from chimera.ops.hadamard import WIDEST, block, rotate_dense, rotate_fast, signs
from chimera.ops.integer import Grid
from chimera.ops.precision import output_dtype, widen
from chimera.ops.straight import recomputing, straight
from chimera.ops.together import linear

Bits = Literal[2, 3, 4, 5, 6, 7, 8]
Transform = Literal["dense", "fast"]
#: Values of `quant.ties`; None for ties to even, which noise in the last bits of x turns.
Ties = Literal["away"]


def nudge(ties: Ties | None) -> float:
    """Factor of x / s before rounding (`ops.grid`)."""
    return AWAY if ties == "away" else 1.0


@runtime_checkable
class HasGrid(Protocol):
    """Inputs that round every token by itself."""

    def grid(self, x: Float[Tensor, "*b d"]) -> Grid:
        """Codes and steps of x."""


#: Bits to which llama.cpp rounds x at the least.
FINE = 8


def _coarse(bits: int) -> GGUF:
    raise NotInGGUF("quant", f"activation_bits={bits}")


class PerToken(nn.Module):
    """n-bit absmax grid per token: equal in training and evaluation, tokens are independent."""

    def __init__(self, bits: int, ties: Ties | None = None) -> None:
        super().__init__()
        self.bits = bits
        self.nudge = nudge(ties)

    def forward(self, x: Float[Tensor, "*b d"]) -> Float[Tensor, "*b d"]:
        peak = x.detach().abs().amax(-1, keepdim=True)
        return straight(x, to_grid(x, peak, self.bits, self.nudge))

    def grid(self, x: Float[Tensor, "*b d"]) -> Grid:
        """The same rounding as codes; x gets the gradient."""
        return Grid(*to_codes(x, self.bits, self.nudge))

    def gguf(self) -> GGUF:
        """Nothing to write: llama.cpp rounds x itself, to 8 bits or finer."""
        return GGUF() if self.bits >= FINE else _coarse(self.bits)


class PerChannel(nn.Module):
    """n-bit absmax grid per channel: over the batch in training, by running maxima in evaluation.

    The batch is that of all processes.

    Maxima of a training batch leak information: the output of a sequence depends on the other
    sequences of the batch, and in a decoder on later tokens. Evaluation therefore uses `maxima`, a
    buffer, and clips larger values:
        maxima ← (1 − momentum) · maxima + momentum · max|x|,      initially max|x|
    Before any training, `maxima` is 0, and evaluation uses the maximum of each token.

    Args:
        dim: channels d.
        bits: n.
        momentum: weight of a new batch.
        ties: where halves go.
    """

    maxima: Tensor

    def __init__(self, dim: int, bits: int, momentum: float, ties: Ties | None = None) -> None:
        super().__init__()
        self.bits = bits
        self.nudge = nudge(ties)
        self.momentum = momentum
        self.register_buffer("maxima", torch.zeros(dim))

    def forward(self, x: Float[Tensor, "*b d"]) -> Float[Tensor, "*b d"]:
        if not x.numel() and not (self.training and reduce.participants() > 1):
            return x  # an expert without tokens
        sizes = x.detach().abs()
        if self.training:
            rows = sizes.flatten(0, -2)
            peak = reduce.largest(rows.amax(0) if len(rows) else rows.new_zeros(rows.shape[1]))
            self._observe(peak)
        else:
            peak = torch.where(self.maxima > 0, self.maxima, sizes.amax(-1, keepdim=True))
        rounded = to_grid(x, peak, self.bits, self.nudge, clip=not self.training)
        return straight(x, rounded)

    def after(
        self, rotation: Rotation, x: Float[Tensor, "*b d"], dtype: torch.dtype
    ) -> Float[Tensor, "*b d"]:
        """The same of rotated x in `dtype`, by kernels."""
        peak = reduce.largest(rotated.peaks(x, rotation.matrix, rotation.n))
        self._observe(peak)
        given = rotation.matrix, rotation.n, peak, self.bits, self.nudge, dtype
        return rotated.rounded(x, *given)

    @torch.no_grad()
    def _observe(self, peak: Float[Tensor, " d"]) -> None:
        if recomputing():
            return
        # A channel that overflowed has no maximum: its step will be left out.
        peak = torch.where(peak.isfinite(), peak.to(self.maxima.dtype), self.maxima)
        mixed = self.maxima.lerp(peak, self.momentum)
        self.maxima.copy_(torch.where(self.maxima > 0, mixed, peak))


class NormedPerToken(nn.Module):
    """RMSNorm without affine part, then an n-bit absmax grid per token: inputs of BitNet b1.58.

    x̄ = x / √(mean x² + eps),   x̂ = PerToken(x̄); the gradient is that of x̄.
    """

    def __init__(self, bits: int, ties: Ties | None = None, eps: float = 1e-6) -> None:
        super().__init__()
        self.bits = bits
        self.nudge = nudge(ties)
        self.eps = eps

    def forward(
        self, x: Float[Tensor, "*b d"], dtype: torch.dtype | None = None
    ) -> Float[Tensor, "*b d"]:
        return rms_grid(x, self.bits, self.eps, dtype, self.nudge)

    def grid(self, x: Float[Tensor, "*b d"]) -> Grid:
        """The same rounding as codes; x gets the gradient through x̄."""
        return Grid(*rms_codes(x, self.bits, self.eps, self.nudge))

    def gguf(self) -> GGUF:
        """A norm of weight 1; its width is that of the linear layer."""
        if self.bits < FINE:
            return _coarse(self.bits)
        return GGUF(
            {"norm": torch.ones(())},
            {"attention.layer_norm_rms_epsilon": self.eps},
            {"a norm inside each linear layer": frozenset({"bitnet"})},
        )


def has_grid(inputs: nn.Module) -> bool:
    """Whether inputs end in a grid per token."""
    last = inputs[-1] if isinstance(inputs, nn.Sequential) else inputs
    return isinstance(last, HasGrid)


def before_grid(inputs: nn.Module, x: Float[Tensor, "*b d"]) -> tuple[Tensor, HasGrid]:
    """Apply all inputs but the grid per token at their end; returns the result and the grid.

    The grid of inputs that change in the course of a run is that of their stage.
    """
    *before, last = inputs if isinstance(inputs, nn.Sequential) else [inputs]
    for module in before:
        x = module(x)
    return x, cast(HasGrid, getattr(last, "current", last))


def on_grid(inputs: nn.Module, x: Float[Tensor, "*b d"]) -> tuple[Tensor, Grid]:
    """Apply all inputs but the grid per token at their end; returns the result and its codes."""
    x, last = before_grid(inputs, x)
    return x, last.grid(x)


def rounded(inputs: nn.Module, x: Float[Tensor, "*b d"]) -> Float[Tensor, "*b d"]:
    """Apply all inputs in float32 or wider; the result has the dtype in which it is multiplied."""
    if isinstance(inputs, NormedPerToken):
        return cast(Tensor, inputs(widen(x), output_dtype(x)))
    if not (isinstance(inputs, nn.Sequential) and isinstance(inputs[0], Rotation)):
        return cast(Tensor, inputs(widen(x)).to(x.dtype))
    if _by_kernels(inputs, x):
        return cast(PerChannel, inputs[1]).after(inputs[0], x, output_dtype(x))
    return cast(Tensor, inputs(x).to(x.dtype))


def product(
    inputs: nn.Module,
    x: Float[Tensor, "*b i"],
    weight: Float[Tensor, "o i"],
    bias: Float[Tensor, " o"] | None,
) -> Float[Tensor, "*b o"]:
    """`F.linear(rounded(inputs, x), weight, bias)`."""
    made = rounded(inputs, x)
    if not _by_kernels(inputs, x):
        return linear(made, weight, bias)
    rotation = cast(Rotation, cast(nn.Sequential, inputs)[0])
    given = made.detach(), weight.to(made.dtype), rotation.matrix, rotation.n
    y = rotated.product(x, *given)
    return y if bias is None else y + bias.to(y.dtype)


def _by_kernels(inputs: nn.Module, x: Tensor) -> bool:
    """Whether kernels rotate x and round it to a grid per channel."""
    if not (isinstance(inputs, nn.Sequential) and isinstance(inputs[0], Rotation)):
        return False
    per_channel = isinstance(inputs[1], PerChannel) and inputs.training
    return per_channel and inputs[0].fast and rotated.serves(x, inputs[0].n)


class Rotation(nn.Module):
    """Rotation x·H in float32 or wider, by a dense product or by butterflies, equal in results."""

    matrix: Tensor

    def __init__(self, dim: int, transform: Transform) -> None:
        super().__init__()
        self.n = block(dim)
        self.fast = transform == "fast"
        order = min(self.n, WIDEST) if self.fast else self.n
        self.register_buffer("matrix", signs(order), persistent=False)

    def forward(self, x: Float[Tensor, "*b d"]) -> Float[Tensor, "*b d"]:
        if self.fast:
            return rotate_fast(x, self.matrix, self.n)
        return rotate_dense(x, self.matrix)
