"""Full precision: torch's Linear and Embedding (SPEC Q1)."""

from __future__ import annotations

from chimera.contract import Role
from chimera.quant.shared.layers import Embedding, Linear


class FullPrecision:
    """No quantisation: weights and activations in full precision."""

    quantises = quantise_head = quantise_embedding = False

    def linear(self, d_in: int, d_out: int, *, bias: bool, role: Role) -> Linear:
        return Linear(d_in, d_out, bias=bias, role=role)

    def embedding(self, entries: int, dim: int) -> Embedding:
        return Embedding(entries, dim)

    def activation(self, dim: int) -> None:
        return None
