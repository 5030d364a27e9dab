"""Static tanh, an ablation of QDyT without mean and with constant α (SPEC N4; QDYT 4.3).

y = γ ⊙ tanh(α x) + β,   α fixed                                            [b t d] to [b t d]
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from chimera.contract import Norm, PositiveFloat
from chimera.ops.precision import widen


class StaticTanh(Norm):
    """Tanh with fixed slope, learned scale and shift.

    Args:
        dim: d.
        alpha: α; the default is QDyT's α at the end of warm-up.
    """

    def __init__(self, dim: int, *, alpha: PositiveFloat = 0.5) -> None:
        super().__init__()
        self.alpha = float(alpha)
        self.weight = nn.Parameter(torch.ones(dim))
        self.bias = nn.Parameter(torch.zeros(dim))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return torch.addcmul(self.bias, self.weight, torch.tanh(self.alpha * widen(x))).to(x.dtype)
