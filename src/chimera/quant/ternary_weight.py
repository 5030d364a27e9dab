"""Ternary weights, full-precision activations: the baseline 2/32, row TernaryBERT (SPEC Q5).

    Ŵ = α·sign(W)·[|W| > Δ],   Δ = 0.7·mean|W|,   α = mean of those |W| > Δ   (arXiv 1605.04711)

One (Δ, α) per matrix and one per entry of the embedding table, as in TernaryBERT (arXiv
2009.12812). TernaryBERT has 8-bit activations, but the table of QDYT says 32. TernaryBERT also
distils from a teacher; that is a loss of the task, this module is only the number format. Layers
keep their biases. Gradients are straight-through. Shapes: [… d_in] to [… d_out].
"""

from __future__ import annotations

from typing import Any

from torch import nn

from chimera.contract import Role
from chimera.ops.ternary import ternary, twn
from chimera.quant.shared.codes import Compute
from chimera.quant.shared.inputs import Bits, Ties
from chimera.quant.shared.layers import LayerQuantiser, TernaryEmbedding, TernaryLinear

FLOATS = (
    "quant.activation_bits=null leaves activations in full precision; set it to 8, or use"
    " quant.compute=simulate"
)


class TernaryWeight(LayerQuantiser):
    """Ternary weights (TWN).

    Args:
        activation_bits: bits of an activation grid per token (8 in TernaryBERT); None for full
            precision.
        embedding: quantise the embedding table too.
        head: quantise the output head too.
        compute: arithmetic of the products: floats (`simulate`) or integer codes (`int8`, `bf16`;
            they need `activation_bits`).
        ties: halves on the grid of activations: `away` from zero, or None, to even.
    """

    def __init__(
        self,
        *,
        activation_bits: Bits | None = None,
        embedding: bool = True,
        head: bool = False,
        compute: Compute = "simulate",
        ties: Ties | None = None,
    ) -> None:
        obstacle = FLOATS if activation_bits is None else ""
        super().__init__(embedding, head, ties, compute, obstacle)
        self.bits = activation_bits

    def layer(self, d_in: int, d_out: int, bias: bool, role: Role) -> nn.Module:
        inputs = self.activation(d_in) or nn.Identity()
        rule = ternary(twn)
        options: Any = {"role": role, "inputs": inputs, "rule": rule, "compute": self.compute}
        return TernaryLinear(d_in, d_out, bias=bias, **options)

    def table(self, entries: int, dim: int) -> nn.Module:
        return TernaryEmbedding(entries, dim, ternary(twn, rows=True))
