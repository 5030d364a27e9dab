"""Dynamic tanh (SPEC N2; TITAN eq. 47-50, arXiv 2503.10622).

    y = γ ⊙ tanh(α x) + β

The norm uses no statistics. α is a scalar in arXiv 2503.10622 and a vector in TITAN 7.2, whose
Table 6 counts 3d parameters. The slope is at most |γ α| (TITAN eq. 48). [b t d] to [b t d].
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from chimera.contract import Norm, PositiveFloat
from chimera.ops.precision import widen


class DyT(Norm):
    """Dynamic tanh: tanh with learned slope, scale and shift.

    Args:
        dim: d.
        alpha: one α per `channel`, or one `scalar` for all channels.
        init: initial α.
    """

    undecayed = ("alpha",)

    def __init__(
        self,
        dim: int,
        *,
        alpha: Literal["channel", "scalar"] = "channel",
        init: PositiveFloat = 0.5,
    ) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.full((dim if alpha == "channel" else 1,), float(init)))
        self.weight = nn.Parameter(torch.ones(dim))
        self.bias = nn.Parameter(torch.zeros(dim))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return torch.addcmul(self.bias, self.weight, torch.tanh(self.alpha * widen(x))).to(x.dtype)
