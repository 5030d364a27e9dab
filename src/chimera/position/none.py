"""No positions: order is known only to mixers that are recurrent or causal (SPEC `none`)."""

from chimera.contract import Position


class NoPosition(Position):
    """All three hooks do nothing."""
