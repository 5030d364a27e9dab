"""Blocks of a mixture of sources.

An epoch of the mixture has a fixed number of blocks of each source. Which block the i-th one is, is
arithmetic: i tells the source and the number within it, so no list of the blocks is held, and the
mixture is the same on any number of processes. The loader shuffles the blocks of all sources
together. A source may be passed several times in an epoch; of the last pass, if it is not a whole
one, each epoch takes other blocks (`Permutation`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from chimera.data.batch.order import Permutation
from chimera.data.corpus.mixture import Recipe
from chimera.data.encode.mixing import MixedTokens


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


class MixedRow:
    """A mixture with the methods of `PackedTokens` that make blocks.

    Args:
        tokens: of the sources.
        length: of the blocks, the only one that the methods take.
        seed: as of `Mix`.
    """

    def __init__(self, tokens: MixedTokens, length: int, seed: int) -> None:
        self.tokens = tokens
        self.length = length
        self.ids = tokens.ids
        self.mix = Mix(tokens.recipe, [row.blocks(length) for row in tokens.rows], seed)

    def blocks(self, length: int) -> int:
        """Number of blocks of an epoch."""
        assert length == self.length
        return len(self.mix)

    def block(self, index: int, length: int, epoch: int = 0) -> npt.NDArray[np.int64]:
        """The index-th block [length] of an epoch."""
        assert length == self.length
        source, number = self.mix.locate(epoch, index)
        return self.tokens.rows[source].block(number, length)
