"""Full precision: torch's own Linear and Embedding (SPEC Q1)."""

from __future__ import annotations

from torch import Tensor, nn

from chimera.contract import Role


class Linear(nn.Linear):
    """torch's Linear that knows its role."""

    role: Role


class Embedding(nn.Embedding):
    """torch's Embedding; `table()` is what the forward pass reads, for a head tied to it."""

    component = "embedding"

    def table(self) -> Tensor:
        """[entries d] as used in the forward pass."""
        return self.weight


class FullPrecision:
    """The quantiser that does nothing."""

    def linear(self, d_in: int, d_out: int, *, bias: bool, role: Role) -> Linear:
        layer = Linear(d_in, d_out, bias=bias)
        layer.role = role
        return layer

    def embedding(self, entries: int, dim: int) -> Embedding:
        return Embedding(entries, dim)
