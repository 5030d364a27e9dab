"""No norm: BitNet's linear layers bring their own (SPEC Q2), so its blocks have none."""

from __future__ import annotations

from torch import Tensor

from chimera.contract import Norm


class NoNorm(Norm):
    """The identity. [b t d] to [b t d]."""

    def __init__(self, dim: int) -> None:
        super().__init__()

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return x
