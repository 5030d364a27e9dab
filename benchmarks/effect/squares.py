"""Choose combinations of three factors of n levels each, from one n × n Latin square to all n³.

    square s = {(i, j, (i + j + s) mod n) : 0 ≤ i, j < n}          s = 0, …, n − 1

In each square every pair of levels of two factors is in exactly one cell (R. A. Fisher, 1935, The
Design of Experiments, chapter V), so that the effects of the three factors are estimated
independently of each other. Squares of different s share no cell: with two of them each pair of
levels is trained with two levels of the third factor, and n squares are all combinations. Two
squares that are orthogonal to each other would share n cells, whatever the names of their levels:
that each pair of symbols occurs once is what orthogonal means.
"""

from __future__ import annotations

from collections.abc import Sequence

from chimera.errors import UserError

#: Fewest levels with which a square leaves anything beside the main effects.
FEWEST = 3


def squares(order: int, number: int = 1) -> list[tuple[int, int, int]]:
    """Cells of the first squares, as indices of levels.

    Args:
        order: n.
        number: of squares, 1 to n.

    Raises:
        UserError: too few levels, or more squares than there are.
    """
    if order < FEWEST:
        raise UserError(f"a factor has {order} levels; name at least {FEWEST}")
    if not 1 <= number <= order:
        raise UserError(f"squares={number}: {order} levels have 1 to {order} squares")
    levels = range(order)
    return [(i, j, (i + j + s) % order) for s in range(number) for i in levels for j in levels]


def cells(factors: Sequence[Sequence[str]], number: int = 1) -> list[tuple[str, ...]]:
    """Cells of the first squares, by the names of their levels.

    Args:
        factors: the names of the levels of three factors.
        number: of squares.

    Raises:
        UserError: factors of unequal length, a level named twice, or a bad number of squares.
    """
    orders = [len(levels) for levels in factors]
    if len(set(orders)) > 1:
        raise UserError(
            f"a Latin square needs as many levels of each factor; there are"
            f" {', '.join(map(str, orders))}"
        )
    for levels in factors:
        twice = [level for level in levels if list(levels).count(level) > 1]
        if twice:
            raise UserError(f"level {twice[0]} is named twice; name each once")
    chosen = squares(orders[0], number)
    return [tuple(factors[f][index] for f, index in enumerate(cell)) for cell in chosen]
