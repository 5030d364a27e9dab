"""Inputs of BitNet a4.8 and v2: 4-bit grids by the mean magnitude, and two stages of training.

    x̄ = x / √(mean x² + eps)
    4 bits   x̂ = clip(round(x̄ / s), −8, 7)·s,   s = mean|x̄| / √7       (2411.04965, 2504.18415)
    sparse   x̂ = PerToken₈(x̄) ⊙ M,   M = 1 for the K channels with the largest |x̄|     (2411.04965)
             and for those that equal the last of them

Values beyond 7·s, here 2.6 times the mean magnitude, are clipped. Rounding, clipping and the mask
pass gradients unchanged; the gradient is that of x̄. Shapes: [… d] to [… d].
"""

from __future__ import annotations

import math
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from chimera.ops.grid import FLOOR, rms_codes
from chimera.ops.integer import Grid
from chimera.ops.numberless import numberless
from chimera.ops.precision import wide
from chimera.ops.straight import straight
from chimera.quant.shared.inputs import Ties, nudge

#: Values of the buffer `stage`: of a model that no run has trained, and of a run's two stages.
UNTRAINED, EARLY, LATE = range(3)
#: Bits that activations end with.
LateBits = Literal[4, 8]


class NormedMean(nn.Module):
    """RMSNorm without affine part, then a grid per token whose step follows the mean magnitude."""

    def __init__(self, bits: int = 4, ties: Ties | None = None, eps: float = 1e-6) -> None:
        super().__init__()
        self.bits = bits
        self.nudge = nudge(ties)
        self.eps = eps

    def forward(self, x: Float[Tensor, "*b d"]) -> Float[Tensor, "*b d"]:
        normed = F.rms_norm(x, x.shape[-1:], eps=self.eps)
        codes, step = self._rounded(normed.detach())
        return straight(normed, codes.mul_(step).to(normed.dtype))

    @torch.no_grad()
    def grid(self, x: Float[Tensor, "*b d"]) -> Grid:
        """The same rounding as codes; x gets the gradient through x̄."""
        mean = x.square().mean(-1, keepdim=True, dtype=wide(x))
        rstd = (mean + self.eps).rsqrt()
        codes, step = self._rounded(F.rms_norm(x, x.shape[-1:], eps=self.eps))
        return Grid(codes.to(torch.int8), step, rstd)

    def _rounded(self, x: Tensor) -> tuple[Tensor, Tensor]:
        levels = 2 ** (self.bits - 1) - 1
        mean = x.abs().mean(-1, keepdim=True, dtype=wide(x)).clamp(min=FLOOR)
        step = mean / math.sqrt(levels)
        return (x / (step / self.nudge)).round_().clamp_(-levels - 1, levels), step


class NormedSparse(nn.Module):
    """RMSNorm without affine part, the largest channels of each token, an absmax grid per token.

    Args:
        share: of the channels that are kept; at least one is.
        ties: where halves go; with `away`, sizes that differ by noise alone are equal.
        bits: of the grid.
        eps: of the norm.
    """

    def __init__(
        self, share: float, ties: Ties | None = None, bits: int = 8, eps: float = 1e-6
    ) -> None:
        super().__init__()
        self.share = share
        self.bits = bits
        self.nudge = nudge(ties)
        self.eps = eps

    def forward(self, x: Float[Tensor, "*b d"]) -> Float[Tensor, "*b d"]:
        normed = F.rms_norm(x, x.shape[-1:], eps=self.eps)
        with torch.no_grad():
            codes, step, _ = self.grid(x)
            rounded = (codes * step).to(normed.dtype)
        return straight(normed, rounded)

    @torch.no_grad()
    def grid(self, x: Float[Tensor, "*b d"]) -> Grid:
        """The same rounding as codes; x gets the gradient through x̄."""
        codes, step, rstd = rms_codes(x, self.bits, self.eps, self.nudge)
        sizes = x.abs()
        least = sizes.topk(max(round(self.share * x.shape[-1]), 1), -1).values[..., -1:]
        return Grid(codes * (sizes * self.nudge >= least), step, rstd)


class Stages(nn.Module):
    """One of two inputs, by the stage of training; the late one in a model that no run has trained.

    The stage is a buffer, so that a checkpoint evaluates with the inputs that it was trained with.

    Args:
        early, late: inputs with a method `grid`.
    """

    stage: Tensor

    def __init__(self, early: nn.Module, late: nn.Module) -> None:
        super().__init__()
        self.early = early
        self.late = late
        self.register_buffer("stage", torch.tensor(UNTRAINED))
        self._note(UNTRAINED)

    def set_stage(self, late: bool) -> None:
        """Choose the inputs from now on."""
        stage = LATE if late else EARLY
        self.stage.fill_(stage)
        self._note(stage)

    @property
    def finished(self) -> bool:
        """Whether a run has trained it up to the late stage."""
        return int(self.stage) == LATE

    def forward(self, x: Float[Tensor, "*b d"]) -> Float[Tensor, "*b d"]:
        return self.current(x)

    def grid(self, x: Float[Tensor, "*b d"]) -> Grid:
        """Codes by the chosen inputs."""
        return self.current.grid(x)  # type: ignore[operator]

    @property
    def current(self) -> nn.Module:
        """The inputs of this stage."""
        if not torch.compiler.is_compiling() and self._seen != self._place():
            self._note(UNTRAINED if numberless(self.stage) else int(self.stage))
        return self.early if self._known == EARLY else self.late

    def _note(self, stage: int) -> None:
        """Keep the stage beside the buffer: to read a buffer synchronises with a GPU."""
        self._known, self._seen = stage, self._place()

    def _place(self) -> tuple[int, int]:
        """Changes where the buffer was written to or replaced, by whatever loads a model."""
        stage = self.stage
        return id(stage), 0 if stage.is_inference() else stage._version
