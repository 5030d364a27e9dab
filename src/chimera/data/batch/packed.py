"""Blocks of packed tokens by (epoch, index): of one row or a mixture; apart or not; in files.

Block i of length L begins at token i·L of its row.

An epoch of a mixture has a fixed number of blocks of each source. Which block the i-th one is, is
arithmetic: i tells the source and the number within it, so no list of the blocks is held, and the
mixture is the same on any number of processes. The loader shuffles the blocks of all sources
together. A source may be passed several times in an epoch; of the last pass, if it is not a whole
one, each epoch takes other blocks (`Permutation`).

`data.boundaries=reset`: each document of a block becomes a row of its own. A mixer starts each row
with an empty state and position 0, and sees no token of another row, so a document is processed as
it would be alone. This holds for every mixer, since every mixer takes padding. It costs padding: a
block with n ends of documents inside takes n + 1 rows.

`data.boundaries=attention`: the block stays one row, and the batch has `documents` [b t], the
number of each token's document in its row, for mixers that mask other documents.

A test set that is too large to copy into each run is a reference to its tokens in the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from chimera.data.batch.loader import Batch, Key, Permutation
from chimera.data.corpus.mixture import Recipe
from chimera.data.encode.packing import MixedTokens, PackedTokens
from chimera.data.source.files import read_arrays, save_arrays
from chimera.data.tokenizer.base import Ids
from chimera.errors import UserError
from chimera.safe_io import sha256_of

Collate = Callable[[list[Any]], Batch]
#: The k-th document of sample n has the number n + k·PIECE, so that its dropout is its own.
PIECE = 1 << 40
#: Most tokens of a test set that is copied into a run.
LARGEST_COPY = 1 << 24


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


def blocks_of(
    tokens: Any, length: int, seed: int, *, following: int = 0, tail: bool = False
) -> Blocks | MixedBlocks:
    """Blocks of a row, or of a mixture; arguments as of both."""
    if isinstance(tokens, MixedTokens):
        return MixedBlocks(tokens, length, seed, following=following)
    return Blocks(tokens, length, following=following, tail=tail)


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


def is_large(tokens: Any) -> bool:
    """Whether a row of tokens in files is referred to instead of copied."""
    return isinstance(tokens, PackedTokens) and len(tokens) > LARGEST_COPY


def refer(file: Path, tokens: PackedTokens, **facts: Any) -> None:
    """Write a reference: names and hashes of the files with the tokens.

    Args:
        file: to write.
        tokens: in files.
        facts: numbers that are needed to read the test set again.
    """
    values: dict[str, Any] = {
        "reference": [str(part.resolve()) for part in tokens.files],
        "sha256": [sha256_of(part) for part in tokens.files],
        "dtype": tokens.dtype,
        **facts,
    }
    arrays: Any = {name: np.array(value) for name, value in values.items()}
    save_arrays(file, **arrays)


def referred(stored: Mapping[str, npt.NDArray[Any]]) -> PackedTokens | None:
    """The tokens that the arrays of a test set refer to; None if they are no reference.

    Raises:
        UserError: the tokens are gone or are others now.
    """
    if "reference" not in stored:
        return None
    files = tuple(Path(str(file)) for file in stored["reference"])
    for part, digest in zip(files, stored["sha256"], strict=True):
        if not part.is_file() or sha256_of(part) != str(digest):
            raise UserError(
                f"the test set is in {part}, which {'changed' if part.is_file() else 'is gone'};"
                " start the run's own command again to prepare the same data"
            )
    return PackedTokens(files, str(stored["dtype"]))


def places(file: Path) -> set[Path]:
    """Folders of the tokens that a test set refers to; empty if it has them itself."""
    try:
        stored = read_arrays(file, "reference") if file.is_file() else {}
    except UserError:
        return set()
    return {Path(str(part)).parent for part in stored.get("reference", ())}
