"""Linear layers and embeddings that know their role, and what all quantised ones have in common.

    y = inputs(x) · Ŵᵀ + b,   Ŵ = Rule(W)

Latent weights stay in full precision; Ŵ is made anew in every forward pass and never kept: a cache
would have to notice every way in which weights can change (an optimiser, a load, a `.data`).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, Int8
from torch import Tensor, nn

from chimera.contract import Role
from chimera.ops.straight import straight
from chimera.ops.ternary import Rule
from chimera.quant.shared.packed import PackedTernaryEmbedding, PackedTernaryLinear


class Linear(nn.Linear):
    """torch's Linear that knows its role."""

    role: Role

    def __init__(self, d_in: int, d_out: int, *, bias: bool, role: Role) -> None:
        super().__init__(d_in, d_out, bias=bias)
        self.role = role


class Embedding(nn.Embedding):
    """torch's Embedding; `table()` is what the forward pass reads, for a head tied to it."""

    component = "embedding"

    def table(self) -> Float[Tensor, "entries d"]:
        """[entries d] as used in the forward pass."""
        return self.weight


class QuantisedLinear(Linear):
    """Linear layer on quantised weights.

    Args:
        d_in, d_out, bias, role: as of a linear layer.
        inputs: what x goes through first: norm, rotation, activation grid.
        rule: what weights are rounded by; None leaves them.
    """

    def __init__(
        self, d_in: int, d_out: int, *, bias: bool, role: Role, inputs: nn.Module, rule: Rule | None
    ) -> None:
        super().__init__(d_in, d_out, bias=bias, role=role)
        self.inputs, self.rule = inputs, rule

    def quantised(self) -> Float[Tensor, "o i"]:
        """Ŵ, with the straight-through gradient to the latent weight."""
        if self.rule is None:
            return self.weight
        return straight(self.weight, self.rule.quantised(self.weight))

    def forward(self, x: Float[Tensor, "*b i"]) -> Float[Tensor, "*b o"]:
        return F.linear(self.inputs(x), self.quantised(), self.bias)


class TernaryLinear(QuantisedLinear):
    """A quantised linear layer whose rule is ternary (or binary, a special case)."""

    rule: Rule

    def ternary(self) -> tuple[Int8[Tensor, "o i"], Tensor]:
        """The codes and scale that the forward pass uses."""
        codes, scale = self.rule.codes(self.weight)
        return codes.to(torch.int8), scale

    def packed(self, *, cache: bool = False) -> PackedTernaryLinear:
        """The layer for inference, its weights packed."""
        return PackedTernaryLinear(self, cache=cache)


class QuantisedEmbedding(Embedding):
    """Embedding on a quantised table (BitEmbedding, TITAN eq. 17)."""

    def __init__(self, entries: int, dim: int, rule: Rule) -> None:
        super().__init__(entries, dim)
        self.rule = rule

    def table(self) -> Float[Tensor, "entries d"]:
        return straight(self.weight, self.rule.quantised(self.weight))

    def forward(self, ids: Int[Tensor, "*b"]) -> Float[Tensor, "*b d"]:
        rows = super().forward(ids)
        return straight(rows, self.rule.quantised(rows, self.weight))


class TernaryEmbedding(QuantisedEmbedding):
    """A quantised embedding whose rule is ternary."""

    def ternary(self) -> tuple[Int8[Tensor, "entries d"], Tensor]:
        """The codes and scale of the table."""
        codes, scale = self.rule.codes(self.weight)
        return codes.to(torch.int8), scale

    def packed(self, *, cache: bool = False) -> PackedTernaryEmbedding:
        """The table for inference, packed."""
        return PackedTernaryEmbedding(self, cache=cache)
