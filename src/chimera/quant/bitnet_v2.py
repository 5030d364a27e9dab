"""BitNet v2: ternary weights, 4-bit activations after a Hadamard rotation (arXiv 2504.18415).

    y = Quant(RMSNorm(x)·H) · W̃ᵀ,   W̃ = γ·clip(round(W/γ), −1, 1),   γ = mean|W|
    Quant₈: absmax per token;   Quant₄: clip(round(x/s), −8, 7)·s,  s = mean|x| / √7

Only the inputs of `out` and `down` are rotated (H-BitLinear for W_o and W_down): they have the
outliers. H is orthonormal, block-diagonal if the width is not a power of two, so that the norm may
come before or after it. A run trains with 8 bits first and with 4 bits in its last twentieth, as
the paper (95 of 100 billion tokens); the callback in the YAML file changes over. Shapes: [… d_in]
to [… d_out].
"""

from __future__ import annotations

from typing import Any

from torch import nn

from chimera.contract import Role
from chimera.ops.ternary import absmean, ternary
from chimera.quant.shared.codes import Compute
from chimera.quant.shared.inputs import NormedPerToken, Rotation, Ties, Transform
from chimera.quant.shared.layers import LayerQuantiser, TernaryLinear
from chimera.quant.shared.stages import LateBits, NormedMean, Stages

ROTATED: frozenset[Role] = frozenset({"out", "down"})


class BitNetV2(LayerQuantiser):
    """Ternary weights, 8-bit and then 4-bit activations after a Hadamard rotation (BitNet v2).

    Args:
        activation_bits: bits at the end of training; with 8 there is one stage.
        transform: `dense` for x @ H in O(d²), `fast` for butterflies in O(d log d).
        embedding: quantise the embedding table too.
        head: quantise the output head too; the paper keeps it in full precision.
        compute: arithmetic of the products: floats (`simulate`) or integer codes (`int8`,
            `bf16`).
        ties: halves on the grid of activations: `away` from zero, or None, to even.
    """

    def __init__(
        self,
        *,
        activation_bits: LateBits = 4,
        transform: Transform = "fast",
        embedding: bool = False,
        head: bool = False,
        compute: Compute = "simulate",
        ties: Ties | None = "away",
    ) -> None:
        super().__init__(embedding, head, ties, compute)
        self.rule = ternary(absmean)
        self.bits = activation_bits
        self.transform = transform

    def layer(self, d_in: int, d_out: int, bias: bool, role: Role) -> nn.Module:
        early = NormedPerToken(8, self.ties)
        grid = early if self.bits == 8 else Stages(early, NormedMean(self.bits, self.ties))
        rotation = [Rotation(d_in, self.transform)] if role in ROTATED else []
        inputs = nn.Sequential(*rotation, grid)
        options: Any = {"role": role, "inputs": inputs, "rule": self.rule, "compute": self.compute}
        return TernaryLinear(d_in, d_out, bias=False, **options)
