"""BitNet b1.58: ternary weights, 8-bit activations (SPEC Q2; arXiv 2402.17764, TITAN 5).

    y = Quant₈(RMSNorm(x)) · W̃ᵀ,   W̃ = γ·clip(round(W/γ), −1, 1),   γ = mean|W|   (TITAN eq. 35-37)

One γ per weight matrix; activations have an absmax grid per token, in training and evaluation. The
layer contains a norm without affine part; BitNet's recipe therefore uses `norm=none`. Layers have
no biases, `bias=True` is ignored. Shapes: [… d_in] to [… d_out].
"""

from __future__ import annotations

from typing import Any, Literal

from torch import nn

from chimera.contract import Role
from chimera.ops.ternary import absmean, ternary, threshold
from chimera.quant.shared.codes import Compute
from chimera.quant.shared.inputs import Bits, NormedPerToken, Ties
from chimera.quant.shared.layers import LayerQuantiser, TernaryLinear


class BitLinear158(TernaryLinear):
    """Ternary linear layer with RMSNorm and an activation grid per token inside (TITAN Alg. 3)."""


class BitNet158(LayerQuantiser):
    """Ternary weights, 8-bit activations (BitNet b1.58).

    Args:
        ternarize: `absmean` rounds W/γ (eq. 35): zero for |W| < γ/2. `threshold` takes the sign
            where |W| > τ = E|W| (eq. 34): zero for |W| < γ. Both scale by γ = E|W|, as Alg. 3.
        activation_bits: bits of the activation grid.
        embedding: quantise the embedding table too.
        head: quantise the output head too; BitNet keeps it in full precision. A tied head then is
            such a layer with the table as its weight; else it multiplies by the table alone.
        compute: arithmetic of the products: floats (`simulate`) or integer codes (`int8`,
            `bf16`).
        ties: halves on the grid of activations: `away` from zero, or None, to even.
    """

    def __init__(
        self,
        *,
        ternarize: Literal["absmean", "threshold"] = "absmean",
        activation_bits: Bits = 8,
        embedding: bool = False,
        head: bool = False,
        compute: Compute = "simulate",
        ties: Ties | None = None,
    ) -> None:
        super().__init__(embedding, head, ties, compute)
        self.rule = ternary({"absmean": absmean, "threshold": threshold}[ternarize])
        self.bits = activation_bits

    def layer(self, d_in: int, d_out: int, bias: bool, role: Role) -> nn.Module:
        inputs = NormedPerToken(self.bits, self.ties)
        options: Any = {"role": role, "inputs": inputs, "rule": self.rule, "compute": self.compute}
        return BitLinear158(d_in, d_out, bias=False, **options)
