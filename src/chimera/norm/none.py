"""No norm, for BitNet: its linear layers contain a norm (SPEC Q2), its blocks have none."""

from __future__ import annotations

from torch import Tensor

from chimera.contract import Norm


class NoNorm(Norm):
    """Identity. [b t d] to [b t d]."""

    def __init__(self, dim: int) -> None:
        super().__init__()

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return x
