"""MXFP4: weights and activations in FP4 with a power of two per 32 values, simulated.

    x̂ = E2M1(x / s)·s,   s = 2^(⌊log₂ max|x|⌋ − 2) over 32 channels     (OCP MX v1.0, 5.2, 6.3)

E2M1 has ±{0, ½, 1, 1½, 2, 3, 4, 6}: 4.25 bits a value with its share of the scale. The largest
value of a block lies in [4, 8)·s, so that values above 6·s saturate (the specification leaves the
rule of the scale open and names this one). Layers keep their biases. Shapes: [… d_in] to [… d_out].
"""

from __future__ import annotations

from torch import nn

from chimera.contract import Role
from chimera.ops.minifloat import mx_scales
from chimera.quant.shared.blocks import Blocks, rule
from chimera.quant.shared.inputs import Ties
from chimera.quant.shared.layers import LayerQuantiser, QuantisedEmbedding, QuantisedLinear


class MXFP4(LayerQuantiser):
    """FP4 weights and activations, a power of two per 32 values (OCP MXFP4), simulated.

    Args:
        activations: round activations too; False leaves weights alone in FP4 (as gpt-oss).
        embedding: quantise the embedding table too.
        head: quantise the output head too. A tied head has the format of the table.
        ties: halves on the grid of activations: `away` from zero, or None, to even.
    """

    def __init__(
        self,
        *,
        activations: bool = True,
        embedding: bool = False,
        head: bool = False,
        ties: Ties | None = None,
    ) -> None:
        super().__init__(embedding, head, ties)
        self.activations = activations
        self.rule = rule(mx_scales, rows=True)

    def layer(self, d_in: int, d_out: int, bias: bool, role: Role) -> nn.Module:
        inputs = self.activation(d_in) or nn.Identity()
        return QuantisedLinear(d_in, d_out, bias=bias, role=role, inputs=inputs, rule=self.rule)

    def table(self, entries: int, dim: int) -> nn.Module:
        return QuantisedEmbedding(entries, dim, self.rule)

    def activation(self, dim: int) -> nn.Module | None:
        return Blocks(mx_scales, self.ties) if self.activations else None
