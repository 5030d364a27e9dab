"""MXFP4: weights and activations in FP4 with a power of two per 32 values, simulated.

    x̂ = E2M1(x / s)·s,   s = 2^(⌊log₂ max|x|⌋ − 2) over 32 channels     (OCP MX v1.0, 5.2, 6.3)

E2M1 has ±{0, ½, 1, 1½, 2, 3, 4, 6}: 4.25 bits a value with its share of the scale. The largest
value of a block lies in [4, 8)·s, so that values above 6·s saturate (the specification leaves the
rule of the scale open and names this one). Layers keep their biases. Shapes: [… d_in] to [… d_out].
"""

from __future__ import annotations

from chimera.ops.minifloat import mx_scales
from chimera.quant.shared.blocks import FourBit, rule
from chimera.quant.shared.inputs import Ties


class MXFP4(FourBit):
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
        self.scales = mx_scales
        self.rule = rule(mx_scales, rows=True)
        self.entries = self.rule
