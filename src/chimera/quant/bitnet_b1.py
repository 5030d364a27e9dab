"""BitNet: binary weights, 8-bit activations (SPEC Q3; arXiv 2310.11453).

    y = Quant₈(LayerNorm(x)) · W̃ᵀ,   W̃ = β·sign(W − mean W),   β = mean|W|

sign(0) is −1, LayerNorm has no affine part, layers have no biases, gradients are straight-through.
The paper scales activations by the maximum of the whole batch in training and of each token in
inference. This code uses the maximum of each token in both (SPEC Q6), so that sequences of a batch
stay independent. Binary codes are packed as ternary codes without zero: 1.6 bits each, not 1.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from chimera.contract import Role
from chimera.ops.ternary import BINARY
from chimera.quant.shared.codes import Compute
from chimera.quant.shared.inputs import Bits, PerToken, Ties
from chimera.quant.shared.layers import LayerQuantiser, TernaryLinear


class BinaryLinear(TernaryLinear):
    """Linear layer that uses the signs of its weights."""


class BitNetB1(LayerQuantiser):
    """Binary weights, 8-bit activations (BitNet).

    Args:
        activation_bits: bits of the activation grid.
        embedding: quantise the embedding table too.
        head: quantise the output head too; the paper keeps it in full precision.
        compute: arithmetic of the products: floats (`simulate`) or integer codes (`int8`,
            `bf16`).
        ties: halves on the grid of activations: `away` from zero, or None, to even.
    """

    def __init__(
        self,
        *,
        activation_bits: Bits = 8,
        embedding: bool = False,
        head: bool = False,
        compute: Compute = "simulate",
        ties: Ties | None = "away",
    ) -> None:
        super().__init__(embedding, head, ties, compute)
        self.rule = BINARY
        self.bits = activation_bits

    def layer(self, d_in: int, d_out: int, bias: bool, role: Role) -> nn.Module:
        inputs = nn.Sequential(
            nn.LayerNorm(d_in, elementwise_affine=False), PerToken(self.bits, self.ties)
        )
        options: Any = {"role": role, "inputs": inputs, "rule": self.rule, "compute": self.compute}
        return BinaryLinear(d_in, d_out, bias=False, **options)
