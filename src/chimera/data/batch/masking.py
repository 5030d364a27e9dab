"""BERT's masking (arXiv 1810.04805, 3.1), drawn per block from a stream of its own.

Of a block of n tokens round(ratio·n) are to be predicted, exactly and at least one, never special
ones. Of these 80 % are replaced by [MASK], 10 % by a random token and 10 % stay as they are.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from chimera.data.tokenizer.base import Tokenizer
from chimera.errors import UserError

Ids = npt.NDArray[np.int64]


class Masked(NamedTuple):
    """A block with holes: what the model sees, where it is to guess, and what was there."""

    ids: Ids
    positions: Ids
    targets: Ids


class Masking:
    """Masks blocks.

    Args:
        tokenizer: tells the [MASK] token, the special ones and the size of the vocabulary.
        ratio: share of the tokens that are to be predicted.

    Raises:
        UserError: the vocabulary has no [MASK].
    """

    def __init__(self, tokenizer: Tokenizer, ratio: float) -> None:
        if tokenizer.mask_id is None:
            raise UserError(
                "task=mlm needs a [MASK] token, which this tokenizer lacks;"
                " use tokenizer.mlm_tokens=true or another tokenizer"
            )
        self.ratio, self.mask_id = ratio, tokenizer.mask_id
        self.special = np.zeros(tokenizer.vocab_size, dtype=bool)
        self.special[list(tokenizer.special_ids)] = True
        self.ordinary = np.flatnonzero(~self.special)

    def __call__(self, block: Ids, rng: np.random.Generator) -> Masked:
        """The block, masked; fewer positions only where it has too few ordinary tokens."""
        candidates = np.flatnonzero(~self.special[block])
        count = min(len(candidates), max(1, round(self.ratio * len(block))))
        positions = np.sort(rng.permutation(candidates)[:count])
        fate = rng.random(count)
        ids = block.copy()
        ids[positions[fate < 0.8]] = self.mask_id
        replaced = positions[fate >= 0.9]
        ids[replaced] = rng.choice(self.ordinary, size=len(replaced))
        return Masked(ids, positions, block[positions])
