"""Blocks of packed tokens, of one row or of a mixture of sources, by (epoch, index).

Block i of length L begins at token i·L of its row.

An epoch of a mixture has a fixed number of blocks of each source. Which block the i-th one is, is
arithmetic: i tells the source and the number within it, so no list of the blocks is held, and the
mixture is the same on any number of processes. The loader shuffles the blocks of all sources
together. A source may be passed several times in an epoch; of the last pass, if it is not a whole
one, each epoch takes other blocks (`Permutation`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from chimera.data.batch.loader import Key
from chimera.data.batch.order import Permutation
from chimera.data.corpus.mixture import Recipe
from chimera.data.encode.packing import MixedTokens
from chimera.data.tokenizer.base import Ids


class Block(NamedTuple):
    """Number of a block, and its ids [t]."""

    number: int
    ids: Ids


class Blocks:
    """Blocks of a row of tokens; the same in all epochs.

    Args:
        row: an object with `ids`, such as `PackedTokens`.
        length: tokens per block.
        following: further tokens of each block, which the next one begins with.
        tail: keep the end of the row as a shorter block.
    """

    def __init__(self, row: Any, length: int, *, following: int = 0, tail: bool = False) -> None:
        self.row = row
        self.length = length
        self.following = following
        self.tail = tail

    def __len__(self) -> int:
        full, rest = divmod(max(0, len(self.row.ids) - self.following), self.length)
        # Without full blocks the tail is kept, else there would be no data at all.
        return full + (rest > 0 and (self.tail or not full))

    def __getitem__(self, key: Key) -> Block:
        start = key[1] * self.length
        ids = self.row.ids[start : start + self.length + self.following]
        return Block(key[1], ids.astype(np.int64))


class MixedBlocks:
    """Blocks of a mixture of rows.

    Args:
        tokens: of the sources.
        length, following: as of `Blocks`.
        seed: as of `Mix`.
    """

    def __init__(self, tokens: MixedTokens, length: int, seed: int, *, following: int = 0) -> None:
        self.row = tokens
        self.sources = [Blocks(row, length, following=following) for row in tokens.rows]
        self.mix = Mix(tokens.recipe, [max(1, len(blocks)) for blocks in self.sources], seed)

    def __len__(self) -> int:
        return len(self.mix)

    def __getitem__(self, key: Key) -> Block:
        source, number = self.mix.locate(*key)
        return Block(key[1], self.sources[source][key[0], number].ids)


class Mix:
    """Maps the blocks of an epoch to blocks of sources.

    Args:
        recipe: of the mixture.
        sizes: blocks of each source.
        seed: of the choice of blocks in incomplete passes.
    """

    def __init__(self, recipe: Recipe, sizes: Sequence[int], seed: int) -> None:
        self.sizes = sizes
        self.seed = seed
        self.counts = recipe.counts(sizes)
        self.starts = np.cumsum([0, *self.counts])

    def __len__(self) -> int:
        return int(self.starts[-1])

    def locate(self, epoch: int, index: int) -> tuple[int, int]:
        """Number of the source, and of the block within it, of the index-th block of an epoch."""
        source = int(np.searchsorted(self.starts, index, side="right")) - 1
        size = self.sizes[source]
        count = self.counts[source]
        passes, number = divmod(index - int(self.starts[source]), size)
        if (passes + 1) * size > count:  # not the whole source: other blocks in each epoch
            order = Permutation(size, self.seed, epoch, 1 + source)
            number = int(order(np.array([number]))[0])
        return source, number
