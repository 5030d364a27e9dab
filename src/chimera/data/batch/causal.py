"""Batches for next-token prediction from packed tokens; the test tokens in a file.

All documents form one row, each ended by the tokenizer's separator. Block i of length L predicts
tokens i·L + 1 … i·L + L. So for any L each token but the first is predicted once, and perplexities
at several lengths measure the same tokens. A batch is a dict:

    ids      int64 [b t]
    mask     bool [b t], True = real; None without padding
    index    int64 [n], real positions in b·t order; None for all
    targets  int64 [n], the following tokens
    indices  int64 [b], numbers of the samples
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch

from chimera.data.batch.boundaries import (
    PIECE,
    are_apart,
    boundaries_of,
    documents_of,
    kept_apart,
    stored_separator,
)
from chimera.data.batch.collate import mask_of, padded
from chimera.data.batch.loader import Batch, Key, ResumableLoader
from chimera.data.batch.mixing import Mix
from chimera.data.batch.module import DataModule
from chimera.data.batch.reference import is_large, refer, referred
from chimera.data.corpus.base import Data
from chimera.data.encode.mixing import MixedTokens
from chimera.data.source.arrays import read_arrays
from chimera.data.source.splits import Split
from chimera.data.tokenizer.base import Ids


class Example(NamedTuple):
    """Number of a block, and its ids [t + 1] with the token that follows the block."""

    number: int
    ids: Ids


class TokenBlocks:
    """Blocks of a row of tokens by (epoch, index); the same in all epochs.

    Args:
        row: an object with `ids`, such as `PackedTokens`.
        length: tokens per block.
        tail: keep the end of the row as a shorter block.
    """

    def __init__(self, row: Any, length: int, *, tail: bool) -> None:
        self.row = row
        self.length = length
        self.tail = tail

    def __len__(self) -> int:
        full, rest = divmod(max(0, len(self.row.ids) - 1), self.length)
        # Without full blocks the tail is kept, else there would be no data at all.
        return full + (rest > 0 and (self.tail or not full))

    def __getitem__(self, key: Key) -> Example:
        start = key[1] * self.length
        return Example(key[1], self.row.ids[start : start + self.length + 1].astype(np.int64))


class MixedBlocks:
    """Blocks of a mixture of rows by (epoch, index).

    Args:
        tokens: of the sources.
        length: tokens per block.
        seed: as of `Mix`.
    """

    def __init__(self, tokens: MixedTokens, length: int, seed: int) -> None:
        self.sources = [TokenBlocks(row, length, tail=False) for row in tokens.rows]
        self.mix = Mix(tokens.recipe, [max(1, len(blocks)) for blocks in self.sources], seed)

    def __len__(self) -> int:
        return len(self.mix)

    def __getitem__(self, key: Key) -> Example:
        source, number = self.mix.locate(*key)
        return Example(key[1], self.sources[source][key[0], number].ids)


class StoredTokens:
    """Row of tokens from a file that `CausalDataModule.save_test` wrote."""

    def __init__(self, file: Path) -> None:
        tokens = referred(file)
        self.ids: Any = tokens[0].ids if tokens else read_arrays(file, "ids")["ids"]


class Collate:
    """Make a batch of examples, padded on the right to the longest."""

    def __init__(self, pad_id: int) -> None:
        self.pad_id = pad_id

    def __call__(self, examples: Sequence[Example]) -> Batch:
        ids, real = padded([example.ids[:-1] for example in examples], self.pad_id)
        mask = mask_of(real)
        return {
            "ids": torch.from_numpy(ids),
            "mask": mask,
            "index": None if mask is None else torch.from_numpy(np.flatnonzero(real)),
            "targets": torch.from_numpy(np.concatenate([e.ids[1:] for e in examples])),
            "indices": torch.tensor([example.number for example in examples]),
        }


class Cut:
    """Cuts an example into those of its documents; a last token alone predicts nothing."""

    def __init__(self, sep_id: int) -> None:
        self.sep_id = sep_id

    def __call__(self, example: Example) -> Iterator[Example]:
        for number, (_, ids) in enumerate(documents_of(example.ids, self.sep_id)):
            if len(ids) > 1:
                yield Example(example.number + number * PIECE, ids)


def loader(
    row: Any,
    settings: Data,
    *,
    pad_id: int = 0,
    sep_id: int | None = None,
    seed: int = 0,
    train: bool = False,
    name: str,
) -> ResumableLoader:
    """Make a loader: shuffled whole blocks for training, else all tokens in order.

    Args:
        row: tokens, `PackedTokens` or `MixedTokens` or an object with `ids`.
        settings: a choice of `data=`.
        pad_id: of the padding.
        sep_id: of the separator, if documents are kept apart.
        seed: of the order.
        train: shuffle and leave out the rest.
        name: of the data, for messages.
    """
    blocks: TokenBlocks | MixedBlocks
    if isinstance(row, MixedTokens):
        blocks = MixedBlocks(row, settings.seq_len, seed)
    else:
        blocks = TokenBlocks(row, settings.seq_len, tail=not train)
    collate: Callable[[list[Any]], Batch] = Collate(pad_id)
    if sep_id is not None:
        boundaries = boundaries_of(settings)
        collate = kept_apart(boundaries, collate, Cut(sep_id), sep_id, causal=True)
    return ResumableLoader.of(blocks, settings, collate, train=train, seed=seed, name=name)


class CausalDataModule(DataModule):
    """Blocks of packed tokens: whole blocks in train, all tokens in validation and test."""

    def save_test(self, file: Path) -> None:
        """Write the row of tokens, so that the test can be repeated at any length.

        Of a large row write a reference.
        """
        row = cast(TokenBlocks, self.test_dataloader().samples).row
        separator: dict[str, Any] = {} if self._sep_id is None else {"sep": self._sep_id}
        if is_large(row):
            refer(file, row, **separator)
        else:
            np.savez_compressed(file, ids=np.asarray(row.ids[:]), **separator)

    @property
    def _sep_id(self) -> int | None:
        return self.prepared.tokenizer.sep_id if are_apart(self.corpus) else None

    def _make_loader(self, split: Split) -> ResumableLoader:
        return loader(
            self.prepared.splits[split],
            self.corpus,
            pad_id=self.prepared.tokenizer.pad_id,
            sep_id=self._sep_id,
            seed=self.seed,
            train=split == "train",
            name=f"the {split} split",
        )

    def _make_test_loader(self, file: Path) -> ResumableLoader:
        sep_id = stored_separator(file) if are_apart(self.corpus) else None
        return loader(StoredTokens(file), self.corpus, sep_id=sep_id, name=str(file))
