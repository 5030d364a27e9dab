"""Uniform integer grids for weights and activations: the baselines 8/8 and 32/4 (SPEC Q5).

    y = Quant_a(x) · Ŵᵀ + b,   Ŵ_i = s_i·round(W_i/s_i),   s_i = max_j|W_ij| / (2^{n−1} − 1)

`int8`: 8-bit weights by output channel, 8-bit activations per token (Q-BERT's row, arXiv
1909.05840, but for its mixed widths and groups). `int4_act`: full weights, 4-bit activations per
channel as in QDYT 3.2 (its ReLU² row, 32/4). Biases stay. Gradients pass straight through.
Shapes: [… d_in] to [… d_out].
"""

from __future__ import annotations

from typing import Literal

from torch import nn

from chimera.contract import Fraction, Role
from chimera.ops.ternary import integer
from chimera.quant.shared.inputs import Bits, PerChannel, PerToken
from chimera.quant.shared.layers import Embedding, Linear, QuantisedEmbedding, QuantisedLinear


class Uniform:
    """Integer weights and activations, either of them or both.

    Args:
        weight_bits: of the weights; None leaves them in full precision.
        activation_bits: of the activations; None leaves them in full precision.
        activations: maxima of the grid `per_token`, or `per_channel` over the batch (which leaks
            across sequences in training; evaluation uses running maxima).
        momentum: of the running maxima.
        embedding: an integer table too, where weights are.
        head: the output head too.
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
    ) -> None:
        self.rule = None if weight_bits is None else integer(weight_bits)
        self.per_channel = activations == "per_channel"
        self.bits, self.momentum = activation_bits, momentum
        self.quantise_embedding, self.quantise_head = embedding, head

    def linear(self, d_in: int, d_out: int, *, bias: bool, role: Role) -> nn.Module:
        if role == "head" and not self.quantise_head:
            return Linear(d_in, d_out, bias=bias, role=role)
        inputs = self._inputs(d_in)
        return QuantisedLinear(d_in, d_out, bias=bias, role=role, inputs=inputs, rule=self.rule)

    def embedding(self, entries: int, dim: int) -> nn.Module:
        if self.rule is None or not self.quantise_embedding:
            return Embedding(entries, dim)
        return QuantisedEmbedding(entries, dim, self.rule)

    def _inputs(self, d_in: int) -> nn.Module:
        if self.bits is None:
            return nn.Identity()
        if self.per_channel:
            return PerChannel(d_in, self.bits, self.momentum)
        return PerToken(self.bits)
