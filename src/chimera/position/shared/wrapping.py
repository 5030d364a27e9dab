"""Base of positions that wrap another position."""

from __future__ import annotations

from jaxtyping import Bool, Float, Int
from torch import Tensor

from chimera.contract import Hook, Position


class Wrapping(Position):
    """Hands every call on to the position `here`, which a subclass sets by `wrap`."""

    here: Position

    def wrap(self, here: Position, hooks: frozenset[Hook]) -> None:
        """Hand on to a position; `hooks` are those that this one provides."""
        object.__setattr__(self, "provides", hooks)  # of this instance
        self.here = here
        self.max_positions = here.max_positions

    def too_long(self, positions: int) -> str:
        return self.here.too_long(positions)

    def rotate(
        self, q: Float[Tensor, "b h t k"], k: Float[Tensor, "b g t k"], pos: Int[Tensor, "#b t"]
    ) -> tuple[Tensor, Tensor]:
        return self.here.rotate(q, k, pos)

    def bias(self, pos_q: Int[Tensor, "#b t"], pos_k: Int[Tensor, "#b s"]) -> Tensor | None:
        return self.here.bias(pos_q, pos_k)

    def content(
        self,
        q: Float[Tensor, "b h t k"],
        k: Float[Tensor, "b g s k"],
        visible: Bool[Tensor, "#b 1 t s"] | None,
    ) -> Tensor | None:
        return self.here.content(q, k, visible)
