"""Keep the documents of a block apart.

`reset`: each document becomes a row of its own, padded on the right. A mixer starts each row with
an empty state and position 0, and sees no token of another row, so a document is processed as it
would be alone. This holds for every mixer, since every mixer takes padding. It costs padding: a
block with n ends of documents inside takes n + 1 rows.

`attention`: the block stays one row, and the batch has `documents` [b t], the number of each
token's document in its row, for mixers that mask other documents.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

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
        self.collate = collate
        self.cut = cut

    def __call__(self, examples: Sequence[Any]) -> Batch:
        pieces = [piece for example in examples for piece in self.cut(example)]
        return self.collate(pieces) if pieces else {**self.collate([*examples]), "void": True}


class Marked:
    """Collates examples and numbers their documents.

    Args:
        collate: of the examples.
        sep_id: ends a document.
        causal: targets are following tokens; those in another document are left out.
    """

    def __init__(self, collate: Callable[[list[Any]], Batch], sep_id: int, *, causal: bool) -> None:
        self.collate = collate
        self.sep_id = sep_id
        self.causal = causal

    def __call__(self, examples: Sequence[Any]) -> Batch:
        batch = self.collate([*examples])
        ends = batch["ids"] == self.sep_id
        batch["documents"] = ends.cumsum(1) - ends.long()
        if self.causal:
            index = batch["index"]
            index = torch.arange(ends.numel()) if index is None else index
            inside = ~ends.flatten()[index]
            if not inside.any():
                return {**batch, "void": True}
            batch["index"], batch["targets"] = index[inside], batch["targets"][inside]
        return batch


def kept_apart(
    boundaries: str,
    collate: Callable[[list[Any]], Batch],
    cut: Callable[[Any], Iterator[Any]],
    sep_id: int,
    *,
    causal: bool,
) -> Callable[[list[Any]], Batch]:
    """The collation that `data.boundaries` asks for.

    Args:
        boundaries: none, attention or reset.
        collate, cut, sep_id, causal: as of `Apart` and `Marked`.
    """
    if boundaries == "attention":
        return Marked(collate, sep_id, causal=causal)
    return Apart(collate, cut) if boundaries == "reset" else collate


def documents_of(ids: Ids, sep_id: int) -> Iterator[tuple[int, Ids]]:
    """Start and ids of each document in ids [t]; a separator ends its document."""
    start = 0
    for document in np.split(ids, np.flatnonzero(ids == sep_id) + 1):
        if len(document):
            yield start, document
        start += len(document)


def boundaries_of(corpus: Any) -> str:
    """`data.boundaries`; tasks on single texts have no such key."""
    return str(getattr(corpus, "boundaries", "none"))


def are_apart(corpus: Any) -> bool:
    """Whether documents are kept apart."""
    return boundaries_of(corpus) != "none"


def stored_separator(file: Path) -> int:
    """The separator that a module whose documents are apart wrote with its test set."""
    return int(read_arrays(file, "sep")["sep"])
