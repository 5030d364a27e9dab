"""What fits into weights and states: memorisation, selective copy, compression (MAD, 2403.17844).

Does not import torch.
"""

# No `from __future__ import annotations`, as in `chimera.data.corpus.base`.

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from chimera.data.corpus.synthetic.base import BLANK, UNASKED, Sequences, Symbols, Synthetic, choose
from chimera.types import PositiveInt


@dataclass(frozen=True, kw_only=True)
class Memorisation(Synthetic):
    """Values of keys that are the same in all sequences: the weights have to hold them.

    A fact is a key of two symbols and a value. A sequence is a row of keys, each followed by a
    blank, which asks for the value. Train and test have the same facts on purpose.

    Args:
        facts: number of keys.
    """

    batch_size: PositiveInt = 24
    held_out: PositiveInt = 256
    seq_len: PositiveInt = 48
    test_len: PositiveInt = 48
    vocabulary: PositiveInt = 129
    facts: PositiveInt = 3000

    @property
    def chance(self) -> float:
        """One of the values."""
        return 1 / self._half

    def need(self) -> int:
        """See `Synthetic.need`: so many symbols that keys of two suffice."""
        return 2 * int(np.ceil(np.sqrt(self.facts))) + 1

    def shortest(self) -> int:
        """See `Synthetic.shortest`."""
        return 3

    @property
    def _half(self) -> int:
        return (self.vocabulary - 1) // 2

    def table(self) -> tuple[Symbols, Symbols]:
        """The facts: keys [facts 2] and values [facts]."""
        random = self.stream("shared")
        keys = random.permutation(self._half**2)[: self.facts]
        values = 1 + self._half + random.integers(self._half, size=self.facts)
        return 1 + np.stack(np.divmod(keys, self._half), -1), values

    def draw(self, random: np.random.Generator, count: int, length: int) -> Sequences:
        """See `Synthetic.draw`."""
        keys, values = self.table()
        chosen = random.integers(self.facts, size=(count, -(-length // 3)))
        blank = np.full((*chosen.shape, 1), BLANK)
        ids = np.concatenate([keys[chosen], blank], -1).reshape(count, -1)
        asked = np.stack([np.full_like(chosen, UNASKED)] * 2 + [values[chosen]], -1)
        targets = asked.reshape(count, -1)[:, :length]
        return Sequences(ids[:, :length], targets, np.zeros_like(targets))


class WithEnd(Synthetic):
    """A vocabulary of a blank, symbols and an end symbol."""

    @property
    def chance(self) -> float:
        """One of the symbols."""
        return 1 / (self.vocabulary - 2)

    def need(self) -> int:
        """See `Synthetic.need`."""
        return 4


@dataclass(frozen=True, kw_only=True)
class SelectiveCopy(WithEnd):
    """Copy the symbols among blanks, in their order.

    Symbols stand at random places among blanks; the last symbol of the vocabulary ends them; at the
    blanks that follow the symbols are asked for, the first one by the end symbol itself.

    Args:
        copied: number of symbols to copy.
    """

    batch_size: PositiveInt = 16
    held_out: PositiveInt = 256
    vocabulary: PositiveInt = 18
    copied: PositiveInt = 12

    def shortest(self) -> int:
        """See `Synthetic.shortest`."""
        return 2 * self.copied

    def draw(self, random: np.random.Generator, count: int, length: int) -> Sequences:
        """See `Synthetic.draw`."""
        symbols = 1 + random.integers(self.vocabulary - 2, size=(count, self.copied))
        ids: Symbols = np.full((count, length), BLANK, dtype=np.int64)
        targets = np.full_like(ids, UNASKED)
        end = length - self.copied
        place = np.sort(choose(random, count, end, self.copied), axis=1)
        np.put_along_axis(ids, place, symbols, 1)
        ids[:, end] = self.vocabulary - 1
        targets[:, end:] = symbols
        return Sequences(ids, targets, np.zeros_like(targets))


@dataclass(frozen=True, kw_only=True)
class Compression(WithEnd):
    """All symbols of a sequence, from the state at its last position alone.

    The last symbol of the vocabulary ends a sequence. `chimera.model.compressor` decodes the output
    of the model there, one vector, to the symbol at each position.
    """

    bottleneck: ClassVar[bool] = True

    batch_size: PositiveInt = 64
    held_out: PositiveInt = 256
    seq_len: PositiveInt = 16
    test_len: PositiveInt = 16
    vocabulary: PositiveInt = 18

    def draw(self, random: np.random.Generator, count: int, length: int) -> Sequences:
        """See `Synthetic.draw`."""
        ids = 1 + random.integers(self.vocabulary - 2, size=(count, length))
        ids[:, -1] = self.vocabulary - 1
        targets = ids.copy()
        targets[:, -1] = UNASKED
        return Sequences(ids, targets, np.zeros_like(targets))
