"""torch's LayerNorm and RMSNorm (SPEC N1; arXiv 1607.06450, 1910.07467)."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from chimera.contract import Norm, PositiveFloat


class LayerNorm(nn.LayerNorm, Norm):
    """γ ⊙ (x − mean)/√(var + eps) + β over the last axis (TITAN eq. 13). [b t d] to [b t d]."""

    def __init__(self, dim: int, *, eps: PositiveFloat = 1e-5) -> None:
        super().__init__(dim, eps=eps)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return F.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)


class RMSNorm(nn.RMSNorm, Norm):
    """γ ⊙ x/√(mean x² + eps) over the last axis (TITAN eq. 14). [b t d] to [b t d]."""

    def __init__(self, dim: int, *, eps: PositiveFloat = 1e-6) -> None:
        super().__init__(dim, eps=eps)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return F.rms_norm(x, self.normalized_shape, self.weight, self.eps)
