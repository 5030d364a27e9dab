"""NVFP4: weights and activations in FP4 with two levels of scales, simulated (arXiv 2509.25149).

    x̂ = E2M1(x / s)·s,   s = E4M3(max₁₆|x| / (6·S))·S,   S = max|x| / (6·448)          (appendix C)

max₁₆ is over 16 channels. S, in float32, brings the largest block scale to 448, the end of E4M3.
A weight matrix has one S, and so has each token. The paper takes one S for all activations of a
batch, by which a token depends on other sequences and, in a decoder, on later tokens. A block whose
maximum is at most 2⁻¹⁰·6·S has the scale zero, and so zeros. Layers keep their biases. Shapes:
[… d_in] to [… d_out].
"""

from __future__ import annotations

from functools import partial

from chimera.ops.minifloat import nv_scales
from chimera.quant.shared.blocks import FourBit, rule
from chimera.quant.shared.inputs import Ties


class NVFP4(FourBit):
    """FP4 weights and activations, an FP8 scale per 16 values and one above it (NVFP4), simulated.

    Args:
        activations: round activations too; False leaves weights alone in FP4.
        embedding: quantise the embedding table too, with a second-level scale per entry.
        head: quantise the output head too. A tied head has the format of the table.
        ties: halves on the grid of activations: `away` from zero, or None, to even.
    """

    def __init__(
        self,
        *,
        activations: bool = True,
        embedding: bool = False,
        head: bool = False,
        ties: Ties | None = "away",
    ) -> None:
        super().__init__(embedding, head, ties)
        self.activations = activations
        self.scales = partial(nv_scales, rows=True)
        self.rule = rule(partial(nv_scales, rows=False), rows=False)
        self.entries = rule(self.scales, rows=True)
