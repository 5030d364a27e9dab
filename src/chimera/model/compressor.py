"""Decode all symbols of a sequence from the model's output at its last position (MAD, 2403.17844).

    z_i = head(W₂ GELU(W₁ (h_T + p_i)))        p_i sinusoidal (arXiv 1706.03762, 3.5)

Shapes: h_T [b d], p [t d], z [b t v]. What the mixer wrote into one vector is all that there is.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from chimera.model.language import LanguageModel, Prediction
from chimera.quant.shared.layers import Linear


class Decoder(nn.Module):
    """The two layers before the head. [n d] to [n d]."""

    component = "head"

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = Linear(width, 2 * width, bias=True, role="head")
        self.down = Linear(2 * width, width, bias=True, role="head")
        for layer in (self.up, self.down):
            nn.init.normal_(layer.weight, std=layer.weight.shape[1] ** -0.5)
            nn.init.zeros_(layer.bias)

    def forward(self, x: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
        return self.down(F.gelu(self.up(x)))


class Compressor(nn.Module):
    """A language model whose last output is decoded to the symbol at each position.

    Args:
        model: causal; its head turns what is decoded into logits.
    """

    def __init__(self, model: LanguageModel) -> None:
        super().__init__()
        self.backbone = model.backbone
        self.head = model.head
        self.decoder = Decoder(model.backbone.width)

    def check_length(self, length: int) -> None:
        """See `LanguageModel.check_length`."""
        LanguageModel.check_length(self, length)  # type: ignore[arg-type]  # it has a backbone

    def init_state(self, batch: int) -> object:
        """Empty state of the backbone."""
        return self.backbone.init_state(batch)

    def forward(
        self,
        ids: Int[Tensor, "b t"],
        mask: Bool[Tensor, "b t"] | None = None,
        *,
        index: Int[Tensor, " n"] | None = None,
        draws: Int[Tensor, " b"] | None = None,
    ) -> Prediction:
        """Logits at `index`, flat positions in b·t order; None for all."""
        out = self.backbone(ids, mask, None, draws)
        place = sinusoid(ids.shape[1], out.y.shape[-1], out.y.device).to(out.y.dtype)
        x = (out.y[:, -1:] + place).flatten(0, 1)
        x = x if index is None else x.index_select(0, index)
        return Prediction(self.head(self.decoder(x)), None, out.aux, out.stats)


def sinusoid(length: int, width: int, device: torch.device) -> Float[Tensor, "t d"]:
    """Sines and cosines of each position, at wavelengths from 2π to 20,000π."""
    places = torch.arange(length, device=device, dtype=torch.float32)
    steps = torch.arange(width, device=device) // 2 * (2 / width)
    angles = places[:, None] * torch.exp(-math.log(10_000.0) * steps)
    return torch.where(torch.arange(width, device=device) % 2 == 0, angles.sin(), angles.cos())
