"""BERT's masking (arXiv 1810.04805, 3.1), drawn for each block from its own random stream.

Exactly round(ratio·n) tokens of a block of n are predicted, at least one, and no special tokens. Of
these 80 % are replaced by [MASK], 10 % by a random token, and 10 % are unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from chimera.errors import UserError

Ids = npt.NDArray[np.int64]


class Masked(NamedTuple):
    """A masked block: the model's input ids [t], predicted positions [n], original tokens [n]."""

    ids: Ids
    positions: Ids
    targets: Ids


class Vocabulary(Protocol):
    """What masking needs of a tokenizer."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def special_ids(self) -> Sequence[int]: ...

    @property
    def mask_id(self) -> int | None: ...


class Masking:
    """Mask blocks of token ids.

    Args:
        tokenizer: gives the [MASK] token, the special tokens and the size of the vocabulary.
        ratio: share of the tokens that are predicted.

    Raises:
        UserError: the vocabulary has no [MASK].
    """

    def __init__(self, tokenizer: Vocabulary, ratio: float) -> None:
        if tokenizer.mask_id is None:
            raise UserError(
                "task=mlm needs a [MASK] token, which this tokenizer lacks;"
                " use tokenizer.mlm_tokens=true or another tokenizer"
            )
        self.tokenizer = tokenizer
        self.ratio = ratio
        self.mask_id = tokenizer.mask_id
        self.special = np.zeros(tokenizer.vocab_size, dtype=bool)
        self.special[list(tokenizer.special_ids)] = True
        self.ordinary = np.flatnonzero(~self.special)

    def __call__(self, block: Ids, rng: np.random.Generator) -> Masked:
        """Mask a block [t]; a block with too few ordinary tokens has fewer positions."""
        candidates = np.flatnonzero(~self.special[block])
        count = min(len(candidates), max(1, round(self.ratio * len(block))))
        positions = np.sort(rng.permutation(candidates)[:count])
        uniform = rng.random(count)
        ids = block.copy()
        ids[positions[uniform < 0.8]] = self.mask_id
        replaced = positions[uniform >= 0.9]
        ids[replaced] = rng.choice(self.ordinary, size=len(replaced))
        return Masked(ids, positions, block[positions])
