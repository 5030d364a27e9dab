"""Collate examples into a batch, padded on the right; keep the documents of a block apart.

`data.boundaries=reset`: each document becomes a row of its own. A mixer starts each row with an
empty state and position 0, and sees no token of another row, so a document is processed as it would
be alone. This holds for every mixer, since every mixer takes padding. It costs padding: a block
with n ends of documents inside takes n + 1 rows.

`data.boundaries=attention`: the block stays one row, and the batch has `documents` [b t], the
number of each token's document in its row, for mixers that mask other documents.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from chimera.data.batch.loader import Batch
from chimera.data.tokenizer.base import Ids

Collate = Callable[[list[Any]], Batch]
#: The k-th document of sample n has the number n + k·PIECE, so that its dropout is its own.
PIECE = 1 << 40


class Example(NamedTuple):
    """Number of a row, its ids [t], positions of predictions [n], and their targets [n]."""

    number: int
    ids: Ids
    positions: Ids
    targets: Ids


def padded(rows: Sequence[Ids], pad_id: int) -> tuple[Ids, npt.NDArray[np.bool_]]:
    """Pad rows on the right to one array [b t]; also return where it holds real tokens [b t]."""
    lengths = np.array([len(row) for row in rows])
    ids = np.full((len(rows), lengths.max()), pad_id, dtype=np.int64)
    for padded_row, row in zip(ids, rows, strict=True):
        padded_row[: len(row)] = row
    return ids, np.arange(ids.shape[1]) < lengths[:, None]


def mask_of(real: npt.NDArray[np.bool_]) -> Tensor | None:
    """`mask` of a batch [b t]; None without padding."""
    return None if real.all() else torch.from_numpy(real)


def collate(examples: Sequence[Example], *, pad_id: int) -> Batch:
    """Make a batch of examples; `index` [n] holds the positions of predictions in b·t order."""
    ids, real = padded([example.ids for example in examples], pad_id)
    index = [row * ids.shape[1] + example.positions for row, example in enumerate(examples)]
    return {
        "ids": torch.from_numpy(ids),
        "mask": mask_of(real),
        "index": torch.from_numpy(np.concatenate(index)),
        "targets": torch.from_numpy(np.concatenate([e.targets for e in examples])),
        "indices": torch.tensor([example.number for example in examples]),
    }


def keep_apart(
    boundaries: str,
    collate: Collate,
    cut: Callable[[Any, int], Iterator[Any]],
    sep_id: int,
    *,
    causal: bool,
) -> Collate:
    """The collation that `data.boundaries` asks for.

    Args:
        boundaries: none, attention or reset.
        collate: of examples.
        cut: pieces of an example, given the separator.
        sep_id: ends a document.
        causal: targets are following tokens; those in another document are left out.
    """
    if boundaries == "attention":
        return partial(_with_documents, collate=collate, sep_id=sep_id, causal=causal)
    if boundaries == "reset":
        return partial(_in_pieces, collate=collate, cut=cut, sep_id=sep_id)
    return collate


def _in_pieces(
    examples: Sequence[Any],
    *,
    collate: Collate,
    cut: Callable[[Any, int], Iterator[Any]],
    sep_id: int,
) -> Batch:
    """Collate the documents of examples; `void` if nothing is left to predict."""
    pieces = [piece for example in examples for piece in cut(example, sep_id)]
    return collate(pieces) if pieces else {**collate([*examples]), "void": True}


def _with_documents(
    examples: Sequence[Any], *, collate: Collate, sep_id: int, causal: bool
) -> Batch:
    """Collate examples and number their documents."""
    batch = collate([*examples])
    ends = batch["ids"] == sep_id
    batch["documents"] = ends.cumsum(1) - ends.long()
    if causal:
        index = batch["index"]
        index = torch.arange(ends.numel()) if index is None else index
        inside = ~ends.flatten()[index]
        if not inside.any():
            return {**batch, "void": True}
        batch["index"] = index[inside]
        batch["targets"] = batch["targets"][inside]
    return batch


def documents_of(ids: Ids, sep_id: int) -> Iterator[tuple[int, Ids]]:
    """Start and ids of each document in ids [t]; a separator ends its document."""
    start = 0
    for document in np.split(ids, np.flatnonzero(ids == sep_id) + 1):
        if len(document):
            yield start, document
        start += len(document)
