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

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch

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
        self.row, self.length, self.tail = row, length, tail

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


def loader(
    row: Any, settings: Data, *, pad_id: int = 0, seed: int = 0, train: bool = False, name: str
) -> ResumableLoader:
    """Make a loader: shuffled whole blocks for training, else all tokens in order."""
    blocks: TokenBlocks | MixedBlocks
    if isinstance(row, MixedTokens):
        blocks = MixedBlocks(row, settings.seq_len, seed)
    else:
        blocks = TokenBlocks(row, settings.seq_len, tail=not train)
    return ResumableLoader.of(blocks, settings, Collate(pad_id), train=train, seed=seed, name=name)


class CausalDataModule(DataModule):
    """Blocks of packed tokens: whole blocks in train, all tokens in validation and test."""

    def save_test(self, file: Path) -> None:
        """Write the row of tokens, so that the test can be repeated at any length.

        Of a large row write a reference.
        """
        row = cast(TokenBlocks, self.test_dataloader().samples).row
        if is_large(row):
            refer(file, row)
        else:
            np.savez_compressed(file, ids=np.asarray(row.ids[:]))

    def _make_loader(self, split: Split) -> ResumableLoader:
        return loader(
            self.prepared.splits[split],
            self.corpus,
            pad_id=self.prepared.tokenizer.pad_id,
            seed=self.seed,
            train=split == "train",
            name=f"the {split} split",
        )

    def _make_test_loader(self, file: Path) -> ResumableLoader:
        return loader(StoredTokens(file), self.corpus, name=str(file))
