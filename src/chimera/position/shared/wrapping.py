"""Base of positions that wrap another position."""

from __future__ import annotations

from typing import Any

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

    def rotate(self, *given: Any) -> tuple[Tensor, Tensor]:
        return self.here.rotate(*given)

    def bias(self, *given: Any) -> Tensor | None:
        return self.here.bias(*given)

    def content(self, *given: Any) -> Tensor | None:
        return self.here.content(*given)
