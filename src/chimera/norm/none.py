"""No norm, for BitNet: its linear layers contain a norm (SPEC Q2), its blocks have none."""

from __future__ import annotations

from torch import Tensor

from chimera.contract import Norm
from chimera.contract_gguf import GGUF


class NoNorm(Norm):
    """Identity. [b t d] to [b t d]."""

    def __init__(self, dim: int) -> None:
        super().__init__()

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return x

    def gguf(self) -> GGUF:
        """No tensor: the linear layers behind it have to have a norm."""
        return GGUF()
