"""torch's LayerNorm and RMSNorm (SPEC N1; arXiv 1607.06450, 1910.07467).

Both compute in float32 or wider: torch's gradient of γ and β of a half-precision x is a sum over
tokens in half precision.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from chimera.contract import Norm, PositiveFloat
from chimera.contract_gguf import GGUF
from chimera.ops.precision import widen

#: llama.cpp has one for all norms of a model.
EPS = "attention.layer_norm_rms_epsilon"


class LayerNorm(nn.LayerNorm, Norm):
    """γ ⊙ (x − mean)/√(var + eps) + β over the last axis (TITAN eq. 13). [b t d] to [b t d]."""

    def __init__(self, dim: int, *, eps: PositiveFloat = 1e-5) -> None:
        super().__init__(dim, eps=eps)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        weight, bias = widen(self.weight), widen(self.bias)
        return F.layer_norm(widen(x), self.normalized_shape, weight, bias, self.eps).to(x.dtype)


class RMSNorm(nn.RMSNorm, Norm):
    """γ ⊙ x/√(mean x² + eps) over the last axis (TITAN eq. 14). [b t d] to [b t d]."""

    def __init__(self, dim: int, *, eps: PositiveFloat = 1e-6) -> None:
        super().__init__(dim, eps=eps)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        y = F.rms_norm(widen(x), self.normalized_shape, widen(self.weight), self.eps)
        return y.to(x.dtype)

    def gguf(self) -> GGUF:
        """As llama.cpp's norm of every block."""
        return GGUF({"weight": self.weight}, {EPS: self.eps})
