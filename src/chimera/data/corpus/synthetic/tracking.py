"""States that each symbol changes: parity and the word problem of S₅. Does not import torch."""

# No `from __future__ import annotations`, as in `chimera.data.corpus.base`.

from dataclasses import dataclass, field
from functools import cache
from itertools import permutations
from typing import Literal

import numpy as np

from chimera.data.corpus.synthetic.base import Longer, Sequences, Symbols
from chimera.types import PositiveInt


@dataclass(frozen=True, kw_only=True)
class Parity(Longer):
    """Parity of the bits so far, at each bit (arXiv 2207.02098; lengths of 2411.12537).

    Symbol 1 is the bit 0, symbol 2 the bit 1; so are the answers.
    """

    batch_size: PositiveInt = 64
    held_out: PositiveInt = 128
    seq_len: PositiveInt = 16
    test_len: PositiveInt = 96
    vocabulary: PositiveInt = 3

    @property
    def chance(self) -> float:
        """Even or odd."""
        return 0.5

    def need(self) -> int:
        """See `Synthetic.need`."""
        return 3

    def draw(self, random: np.random.Generator, count: int, length: int) -> Sequences:
        """See `Synthetic.draw`."""
        bits = random.integers(2, size=(count, length))
        return Sequences(1 + bits, 1 + np.cumsum(bits, axis=1) % 2, self.stretches(bits.shape))


@dataclass(frozen=True, kw_only=True)
class S5(Longer):
    """Word problem of the symmetric group S₅: the product of the permutations so far (2404.08819).

    Symbol 1 + i is the i-th permutation of five things in lexicographic order, as a factor and as
    an answer. A word problem over S₅ is complete for NC¹, which constant depth does not reach.

    Args:
        factors: the permutations that are multiplied: `swaps` of two things, or `all` of the group.
    """

    batch_size: PositiveInt = 64
    held_out: PositiveInt = 256
    seq_len: PositiveInt = 16
    test_len: PositiveInt = 32
    vocabulary: PositiveInt = 121
    longer: list[PositiveInt] = field(default_factory=lambda: [1, 2])
    factors: Literal["swaps", "all"] = "swaps"

    @property
    def chance(self) -> float:
        """One of the permutations; of `swaps`, of those with the parity of the position."""
        return 1 / 60 if self.factors == "swaps" else 1 / 120

    def need(self) -> int:
        """See `Synthetic.need`."""
        return 121

    def draw(self, random: np.random.Generator, count: int, length: int) -> Sequences:
        """See `Synthetic.draw`."""
        product = products()
        swaps = [i for i, p in enumerate(elements()) if sum(a != b for a, b in enumerate(p)) == 2]
        allowed = np.array(swaps if self.factors == "swaps" else range(120))
        drawn = allowed[random.integers(len(allowed), size=(count, length))]
        state: Symbols = np.zeros(count, dtype=np.int64)  # the identity
        states = np.empty_like(drawn)
        for position in range(length):
            state = product[drawn[:, position], state]
            states[:, position] = state
        return Sequences(1 + drawn, 1 + states, self.stretches(drawn.shape))


@cache
def elements() -> tuple[tuple[int, ...], ...]:
    """The 120 permutations of five things; the first is the identity."""
    return tuple(permutations(range(5)))


@cache
def products() -> Symbols:
    """[120 120] index of p ∘ q: first q, then p."""
    index = {p: i for i, p in enumerate(elements())}
    return np.array(
        [[index[tuple(p[image] for image in q)] for q in elements()] for p in elements()]
    )
