"""BitNet a4.8: ternary weights, 4-bit and sparse 8-bit activations (arXiv 2411.04965).

    y = Quant(RMSNorm(x)) · W̃ᵀ,   W̃ = γ·clip(round(W/γ), −1, 1),   γ = mean|W|
    qkv, gate, up   4 bits: clip(round(x/s), −8, 7)·s,  s = mean|x| / √7
    out             8 bits, the half of the channels with the largest |x|; 0 elsewhere
    down            8 bits; ffn=relu2_glu makes most of its inputs zero

A run trains all layers with 8 bits and without a mask first, and so in its last twentieth, as the
paper (95 of 100 billion tokens); the callback in the YAML file changes over. The paper's FP4 grid
(E2M1) in place of 4-bit integers, and its 3-bit cache, are left out. Shapes: [… d_in] to [… d_out].
"""

from __future__ import annotations

from typing import Any

from torch import nn

from chimera.contract import Fraction, Role
from chimera.ops.ternary import absmean, ternary
from chimera.quant.shared.codes import Compute
from chimera.quant.shared.inputs import NormedPerToken, Ties
from chimera.quant.shared.layers import LayerQuantiser, TernaryLinear
from chimera.quant.shared.stages import NormedMean, NormedSparse, Stages


class BitNetA48(LayerQuantiser):
    """Ternary weights, 4-bit activations, sparse 8-bit inputs of output layers (BitNet a4.8).

    Args:
        keep: share of the channels that inputs of `out` layers keep in the second stage.
        embedding: quantise the embedding table too.
        head: quantise the output head too (with 8 bits); the paper keeps it in full precision.
        compute: arithmetic of the products: floats (`simulate`) or integer codes (`int8`,
            `bf16`).
        ties: halves on the grid of activations: `away` from zero, or None, to even.
    """

    def __init__(
        self,
        *,
        keep: Fraction = 0.5,
        embedding: bool = False,
        head: bool = False,
        compute: Compute = "simulate",
        ties: Ties | None = "away",
    ) -> None:
        super().__init__(embedding, head, ties, compute)
        self.rule = ternary(absmean)
        self.bits = 8
        self.keep = keep

    def layer(self, d_in: int, d_out: int, bias: bool, role: Role) -> nn.Module:
        options: Any = {"role": role, "rule": self.rule, "compute": self.compute}
        return TernaryLinear(d_in, d_out, bias=False, inputs=self._inputs(role), **options)

    def _inputs(self, role: Role) -> nn.Module:
        early = NormedPerToken(8, self.ties)
        if role in {"down", "head"}:
            return early
        sparse = role == "out"
        late = NormedSparse(self.keep, self.ties) if sparse else NormedMean(4, self.ties)
        return Stages(early, late)
