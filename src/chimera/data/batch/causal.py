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
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import torch

from chimera.data.batch.collate import mask_of, padded
from chimera.data.batch.loader import Batch, Key, ResumableLoader
from chimera.data.corpus.base import Data
from chimera.data.encode.prepare import Prepared
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
    """The row of tokens in a file that `save_test` wrote."""

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
    row: Any,
    settings: Data,
    *,
    pad_id: int = 0,
    seed: int = 0,
    train: bool = False,
    rank: int = 0,
    world_size: int = 1,
    name: str,
) -> ResumableLoader:
    """A loader of one split: shuffled whole blocks to train on, or all tokens in order."""
    return ResumableLoader.of(
        TokenBlocks(row, settings.seq_len, tail=not train),
        settings,
        Collate(pad_id),
        train=train,
        seed=seed,
        rank=rank,
        world_size=world_size,
        name=name,
    )


def loaders(
    data: Prepared, settings: Data, seed: int, *, rank: int = 0, world_size: int = 1
) -> tuple[ResumableLoader, ResumableLoader, ResumableLoader]:
    """Loaders of train (shuffled), valid and test (in order, to the last token).

    Raises:
        UserError: less text than one batch.
    """
    train, valid, test = (
        loader(
            data.splits[split],
            settings,
            pad_id=data.tokenizer.pad_id,
            seed=seed,
            train=split == "train",
            rank=rank,
            world_size=world_size,
            name=f"the {split} split",
        )
        for split in ("train", "valid", "test")
    )
    return train, valid, test


def lengthened(settings: Data, length: int) -> Data:
    """The same data in sequences of another length, about as many tokens a batch."""
    batch = max(1, settings.batch_size * settings.seq_len // length)
    return replace(settings, seq_len=length, batch_size=batch)


def save_test(test: ResumableLoader, file: Path) -> None:
    """Write the row that a loader reads, so that a test can be repeated, at any length."""
    blocks = cast(TokenBlocks, test.samples)
    np.savez_compressed(file, ids=np.asarray(blocks.row.ids))


def load_test(file: Path, settings: Data) -> ResumableLoader:
    """A loader of what `save_test` wrote, in blocks of `settings.seq_len`."""
    return loader(StoredTokens(file), settings, name=str(file))
