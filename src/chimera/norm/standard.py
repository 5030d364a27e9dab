"""torch's LayerNorm and RMSNorm (SPEC N1; arXiv 1607.06450, 1910.07467).

Both compute in float32 or wider: torch's gradient of γ and β of a half-precision x is a sum over
tokens in half precision.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from chimera.contract import Norm, PositiveFloat
from chimera.contract_gguf import GGUF
from chimera.contract_hf import LLAMA_LIKE
from chimera.ops.precision import widen

#: llama.cpp has one for all norms of a model.
EPS = "attention.layer_norm_rms_epsilon"

#: Type of checkpoints whose norms have the weight 1 + γ.
ZERO_CENTRED = "qwen3_next"


class LayerNorm(nn.LayerNorm, Norm):
    """γ ⊙ (x − mean)/√(var + eps) + β over the last axis (TITAN eq. 13). [b t d] to [b t d]."""

    def __init__(self, dim: int, *, eps: PositiveFloat = 1e-5) -> None:
        super().__init__(dim, eps=eps)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        weight = widen(self.weight)
        bias = widen(self.bias)
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

    @classmethod
    def hf_settings(cls, config: Mapping[str, Any], layer: int) -> dict[str, Any] | None:
        """Norms of Llama's family, Qwen3-Next and both Mambas."""
        mambas = {"mamba", "mamba2"}
        if config["model_type"] not in {*LLAMA_LIKE, *mambas, ZERO_CENTRED}:
            return None
        key = "layer_norm_epsilon" if config["model_type"] in mambas else "rms_norm_eps"
        return {"eps": float(config[key])}

    def hf_tensors(
        self, tensors: Mapping[str, Tensor], config: Mapping[str, Any]
    ) -> dict[str, Tensor]:
        """γ; Qwen3-Next stores γ − 1."""
        weight = tensors["weight"]
        return {"weight": weight + 1 if config["model_type"] == ZERO_CENTRED else weight}
