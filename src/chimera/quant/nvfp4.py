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

from torch import nn

from chimera.contract import Role
from chimera.ops.minifloat import nv_scales
from chimera.quant.shared.blocks import Blocks, rule
from chimera.quant.shared.inputs import Ties
from chimera.quant.shared.layers import LayerQuantiser, QuantisedEmbedding, QuantisedLinear


class NVFP4(LayerQuantiser):
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
        self.rules = {
            each: rule(partial(nv_scales, rows=each), rows=each) for each in (True, False)
        }

    def layer(self, d_in: int, d_out: int, bias: bool, role: Role) -> nn.Module:
        inputs = self.activation(d_in) or nn.Identity()
        weights = self.rules[False]
        return QuantisedLinear(d_in, d_out, bias=bias, role=role, inputs=inputs, rule=weights)

    def table(self, entries: int, dim: int) -> nn.Module:
        return QuantisedEmbedding(entries, dim, self.rules[True])

    def activation(self, dim: int) -> nn.Module | None:
        return Blocks(partial(nv_scales, rows=True), self.ties) if self.activations else None
