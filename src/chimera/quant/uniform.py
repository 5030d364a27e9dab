"""Uniform integer grids for weights and activations: the baselines 8/8 and 32/4 (SPEC Q5).

    y = Quant_a(x) · Ŵᵀ + b,   Ŵ_i = s_i·round(W_i/s_i),   s_i = max_j|W_ij| / (2^{n−1} − 1)

`int8`: 8-bit weights per output channel, 8-bit activations per token (row Q-BERT, arXiv
1909.05840, without its mixed widths and groups). `int4_act`: full-precision weights, 4-bit
activations per channel as in QDYT 3.2 (row ReLU², 32/4). Layers keep their biases. Gradients are
straight-through. Shapes: [… d_in] to [… d_out].
"""

from __future__ import annotations

from typing import Any, Literal

from torch import nn

from chimera.contract import Fraction, Role
from chimera.ops.ternary import integer
from chimera.quant.shared.codes import PER_CHANNEL, Compute
from chimera.quant.shared.inputs import Bits, Ties
from chimera.quant.shared.layers import (
    Embedding,
    IntegerEmbedding,
    IntegerLinear,
    LayerQuantiser,
    QuantisedLinear,
)

FLOATS = (
    "quant.weight_bits=null or quant.activation_bits=null leaves a factor in full precision; set"
    " both to 8, or use quant.compute=simulate"
)


class Uniform(LayerQuantiser):
    """Integer weights, integer activations, or both.

    Args:
        weight_bits: bits of the weights; None for full precision.
        activation_bits: bits of the activations; None for full precision.
        activations: maxima of the grid, `per_token`, or `per_channel` over the batch (leaks across
            sequences in training; evaluation uses running maxima).
        momentum: weight of a new batch in the running maxima.
        embedding: quantise the embedding table too, if weights are quantised.
        head: quantise the output head too.
        compute: arithmetic of the products: floats (`simulate`) or integer codes (`int8`, `bf16`;
            they need both widths and `activations=per_token`).
        ties: halves on the grid of activations: `away` from zero, or None, to even.
    """

    def __init__(
        self,
        *,
        weight_bits: Bits | None = 8,
        activation_bits: Bits | None = 8,
        activations: Literal["per_token", "per_channel"] = "per_token",
        momentum: Fraction = 0.1,
        embedding: bool = True,
        head: bool = False,
        compute: Compute = "simulate",
        ties: Ties | None = None,
    ) -> None:
        self.rule = None if weight_bits is None else integer(weight_bits)
        self.per_channel = activations == "per_channel"
        self.bits = activation_bits
        self.momentum = momentum
        widths = weight_bits, activation_bits
        obstacle = FLOATS if None in widths else PER_CHANNEL if self.per_channel else ""
        super().__init__(embedding, head, ties, compute, obstacle)

    def layer(self, d_in: int, d_out: int, bias: bool, role: Role) -> nn.Module:
        inputs = self.activation(d_in) or nn.Identity()
        options: Any = {"role": role, "inputs": inputs, "rule": self.rule, "compute": self.compute}
        kind = QuantisedLinear if self.rule is None else IntegerLinear
        return kind(d_in, d_out, bias=bias, **options)

    def table(self, entries: int, dim: int) -> nn.Module:
        rule = self.rule
        return Embedding(entries, dim) if rule is None else IntegerEmbedding(entries, dim, rule)
