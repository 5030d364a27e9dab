"""No position encoding: only recurrent or causal mixers depend on order (SPEC `none`)."""

from chimera.contract import Position


class NoPosition(Position):
    """Position encoding whose three hooks do nothing."""
