"""Batches for next-token prediction, cut from packed tokens; and the test tokens kept in a file.

Documents stand in one row, each ended by the tokenizer's separator. Block i of length L is what
predicts tokens i·L + 1 … i·L + L, so that over all blocks every token but the first is predicted
once, whatever L is: perplexities at several lengths speak of the same tokens. A batch is a dict:
`ids` int64 [b t], `mask` bool [b t] (True = real) or None where nothing is padded, `index` int64
[n], the real positions in b·t order, or None for all, `targets` int64 [n], the tokens that follow,
and `indices` int64 [b], the samples' numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import torch

from chimera.data.batch.collate import mask_of, padded
from chimera.data.batch.loader import Batch, Key, ResumableLoader
from chimera.data.batch.module import DataModule
from chimera.data.corpus.base import Data
from chimera.data.source.splits import Split
from chimera.data.tokenizer.base import Ids


class Example(NamedTuple):
    """A block with the token that follows it, and which one."""

    number: int
    ids: Ids


class TokenBlocks:
    """Blocks of a row of tokens by (epoch, index); the same in all epochs.

    Args:
        row: anything with `ids`, such as `PackedTokens`.
        length: of a block.
        tail: keep what is left at the end as a shorter block.
    """

    def __init__(self, row: Any, length: int, *, tail: bool) -> None:
        self.row, self.length, self.tail = row, length, tail

    def __len__(self) -> int:
        full, rest = divmod(max(0, len(self.row.ids) - 1), self.length)
        # A row shorter than one block is all there is to learn from.
        return full + (rest > 0 and (self.tail or not full))

    def __getitem__(self, key: Key) -> Example:
        start = key[1] * self.length
        return Example(key[1], self.row.ids[start : start + self.length + 1].astype(np.int64))


class StoredTokens:
    """The row of tokens in a file that `CausalDataModule.save_test` wrote."""

    def __init__(self, file: Path) -> None:
        with np.load(file) as stored:
            self.ids: npt.NDArray[Any] = stored["ids"]


class Collate:
    """Examples to a batch, padded on the right where they differ in length."""

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
    """Shuffled whole blocks to train on, or all tokens in order."""
    blocks = TokenBlocks(row, settings.seq_len, tail=not train)
    return ResumableLoader.of(blocks, settings, Collate(pad_id), train=train, seed=seed, name=name)


class CausalDataModule(DataModule):
    """Blocks of packed tokens: whole ones in train; in validation and test every token."""

    def save_test(self, file: Path) -> None:
        """Write the row of tokens, from which the test can be repeated at any length."""
        blocks = cast(TokenBlocks, self.test_dataloader().samples)
        np.savez_compressed(file, ids=np.asarray(blocks.row.ids))

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
