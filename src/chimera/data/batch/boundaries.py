"""Keep documents apart: each document of a block becomes a row of its own, padded on the right.

A mixer starts each row with an empty state and position 0, and sees no token of another row, so a
document is processed as it would be alone. This holds for every mixer, since every mixer takes
padding. It costs padding: a block with n ends of documents inside takes n + 1 rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from chimera.data.batch.loader import Batch
from chimera.data.source.arrays import read_arrays
from chimera.data.tokenizer.base import Ids

#: The k-th document of sample n has the number n + k·PIECE, so that its dropout is its own.
PIECE = 1 << 40


class Apart:
    """Collates examples after they are cut at the ends of documents.

    A batch in which nothing is left to predict is `void`, as `ResumableLoader` says.

    Args:
        collate: of the pieces.
        cut: pieces of an example.
    """

    def __init__(
        self, collate: Callable[[list[Any]], Batch], cut: Callable[[Any], Iterator[Any]]
    ) -> None:
        self.collate, self.cut = collate, cut

    def __call__(self, examples: Sequence[Any]) -> Batch:
        pieces = [piece for example in examples for piece in self.cut(example)]
        return self.collate(pieces) if pieces else {**self.collate([*examples]), "void": True}


def documents_of(ids: Ids, sep_id: int) -> Iterator[tuple[int, Ids]]:
    """Start and ids of each document in ids [t]; a separator ends its document."""
    start = 0
    for document in np.split(ids, np.flatnonzero(ids == sep_id) + 1):
        if len(document):
            yield start, document
        start += len(document)


def are_apart(corpus: Any) -> bool:
    """Whether `data.boundaries` asks for it; tasks on single texts have no such key."""
    return getattr(corpus, "boundaries", "none") != "none"


def stored_separator(file: Path) -> int:
    """The separator that a module whose documents are apart wrote with its test set."""
    return int(read_arrays(file, "sep")["sep"])
