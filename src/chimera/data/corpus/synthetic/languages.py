"""In-context regular languages (RegBench, arXiv 2401.12973). Does not import torch."""

# No `from __future__ import annotations`, as in `chimera.data.corpus.base`.

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from chimera.data.corpus.synthetic.base import UNASKED, Sequences, Symbols, Synthetic, choose
from chimera.errors import UserError
from chimera.types import PositiveInt

#: The symbol that ends a string.
END = 1


class Automata(NamedTuple):
    """Automata, one for each of n sequences.

    Args:
        symbols: [n states arcs] symbol of each arc.
        targets: [n states arcs] state that it leads to.
        arcs: [n states] number of arcs of each state; the first ones count.
    """

    symbols: Symbols
    targets: Symbols
    arcs: Symbols

    def right(self) -> Symbols:
        """[n states] bit s is set where an arc has symbol s."""
        real = np.arange(self.symbols.shape[2]) < self.arcs[..., None]
        return np.where(real, 1 << self.symbols, 0).sum(-1)


@dataclass(frozen=True, kw_only=True)
class RegBench(Synthetic):
    """Strings of an automaton that is drawn anew for each sequence.

    A sequence is strings of one automaton, each ended by symbol 1. A string begins in state 0; each
    state has a few arcs with different symbols to random states, taken with equal probability. Each
    symbol of a string is asked for; those in the second half of a sequence are judged, and right is
    any symbol that an arc of the state has. Only one who knows the automaton is always right: a
    sequence shows its arcs by and by. RegBench's automata have up to 12 states and its sequences
    up to 20 strings of up to 50 symbols.

    Args:
        states: number of states.
        arcs: most arcs of a state, which state 0 has; the others have one to so many.
        alphabet: symbols of an automaton, drawn of the vocabulary.
        string: symbols of a string.
    """

    batch_size: PositiveInt = 16
    held_out: PositiveInt = 256
    seq_len: PositiveInt = 80
    test_len: PositiveInt = 80
    vocabulary: PositiveInt = 20
    states: PositiveInt = 6
    arcs: PositiveInt = 3
    alphabet: PositiveInt = 8
    string: PositiveInt = 9

    @property
    def groups(self) -> tuple[str, ...]:
        """See `Synthetic.groups`."""
        return ("first_half", "second_half")

    @property
    def judged(self) -> tuple[str, ...]:
        """See `Synthetic.judged`."""
        return ("second_half",)

    @property
    def chance(self) -> float:
        """One of the automaton's symbols: the mean number of arcs of a state, state 0 once."""
        mean = (self.arcs + (self.string - 1) * (1 + self.arcs) / 2) / self.string
        return mean / self.alphabet

    def need(self) -> int:
        """See `Synthetic.need`."""
        return self.alphabet + 2

    def check(self) -> None:
        """See `Synthetic.check`."""
        super().check()
        if self.arcs > self.alphabet:
            raise UserError(
                f"data.arcs={self.arcs} needs as many symbols; data.alphabet is {self.alphabet}"
            )
        if self.vocabulary > 62:
            raise UserError(f"data.vocabulary={self.vocabulary} is too large; it is at most 62")

    def automata(self, random: np.random.Generator, count: int) -> Automata:
        """Draw automata."""
        shape = (count, self.states, self.arcs)
        alphabet = 2 + choose(random, count, self.vocabulary - 2, self.alphabet)
        picked = np.argsort(random.random((count, self.states, self.alphabet)), -1)
        symbols = np.take_along_axis(alphabet[:, None], picked[..., : self.arcs], 2)
        arcs = random.integers(1, self.arcs + 1, size=shape[:2])
        arcs[:, 0] = self.arcs  # else some automata would have a single string
        return Automata(symbols, random.integers(self.states, size=shape), arcs)

    def draw(self, random: np.random.Generator, count: int, length: int) -> Sequences:
        """See `Synthetic.draw`."""
        automata = self.automata(random, count)
        legal = automata.right()
        rows = np.arange(count)
        ids: Symbols = np.full((count, length + 1), END, dtype=np.int64)
        right = np.zeros_like(ids)
        state = np.zeros(count, dtype=np.int64)
        for position in range(1, length + 1):  # a walk: each state depends on the one before
            if position % (self.string + 1) == 0:
                state[:] = 0
                continue
            arc = (random.random(count) * automata.arcs[rows, state]).astype(np.int64)
            right[:, position] = legal[rows, state]
            ids[:, position] = automata.symbols[rows, state, arc]
            state = automata.targets[rows, state, arc]
        targets = np.where(right > 0, ids, UNASKED)[:, 1:]
        group = (2 * np.arange(length) >= length).astype(np.int64)
        groups = np.broadcast_to(group, targets.shape).copy()
        return Sequences(ids[:, :-1], targets, groups, right[:, 1:])
