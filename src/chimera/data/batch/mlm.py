"""Batches for masked language modelling, made from packed tokens; and the test set kept in a file.

A batch is a dict: `ids` int64 [b t] with holes, `mask` bool [b t] (True = real) or None where
nothing is padded, `index` int64 [n], the masked positions in b·t order, `targets` int64 [n], what
was there, and `indices` int64 [b], the samples' numbers.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from chimera.data.batch.collate import Collate, Example, padded
from chimera.data.batch.loader import Key, ResumableLoader
from chimera.data.batch.masking import Masking
from chimera.data.batch.streams import Purpose, stream
from chimera.data.corpus.base import Data
from chimera.data.encode.packing import PackedTokens
from chimera.data.encode.prepare import Prepared
from chimera.errors import UserError

#: Validation and test are masked as of this epoch, which no training reaches, under this seed: the
#: same holes at every validation and in every run, so that runs answer the same questions.
FIXED_EPOCH, FIXED_SEED = 1 << 62, 0


class MaskedBlocks:
    """Blocks of one split by (epoch, index); masks are a function of (seed, epoch, index).

    Args:
        tokens: of the split.
        length: of a block.
        masking: how it is masked.
        seed: of the masks.
        fixed: the same masks in all epochs.
    """

    def __init__(
        self, tokens: PackedTokens, length: int, masking: Masking, *, seed: int, fixed: bool
    ) -> None:
        self.tokens, self.length, self.masking = tokens, length, masking
        self.seed, self.fixed = seed, fixed

    def __len__(self) -> int:
        return self.tokens.blocks(self.length)

    def __getitem__(self, key: Key) -> Example:
        epoch, index = key
        rng = stream(Purpose.MASK, self.seed, FIXED_EPOCH if self.fixed else epoch, index)
        return Example(index, *self.masking(self.tokens.block(index, self.length), rng))


class StoredBlocks:
    """Masked blocks from a file that `save_test` wrote."""

    def __init__(self, file: Path) -> None:
        with np.load(file) as stored:
            self.ids, self.lengths = stored["ids"].astype(np.int64), stored["lengths"]
            self.positions, self.targets = stored["positions"], stored["targets"]
            self.ends = np.cumsum(stored["counts"])

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, key: Key) -> Example:
        index = key[1]
        inside = slice(self.ends[index - 1] if index else 0, self.ends[index])
        row = self.ids[index, : self.lengths[index]]
        return Example(
            index,
            row,
            self.positions[inside].astype(np.int64),
            self.targets[inside].astype(np.int64),
        )


def loaders(
    data: Prepared,
    settings: Data,
    mask_ratio: float,
    seed: int,
    *,
    rank: int = 0,
    world_size: int = 1,
) -> tuple[ResumableLoader, ResumableLoader, ResumableLoader]:
    """Loaders of train (shuffled, new masks every epoch), valid and test (in order, fixed masks).

    Raises:
        UserError: less text than one batch, or a tokenizer without [MASK].
    """
    masking = Masking(data.tokenizer, mask_ratio)

    def loader(split: str, *, train: bool) -> ResumableLoader:
        tokens = data.splits[split]
        blocks = MaskedBlocks(
            tokens,
            settings.seq_len,
            masking,
            seed=seed if train else FIXED_SEED,
            fixed=not train,
        )
        if np.isin(tokens.ids[: 1 << 20], data.tokenizer.special_ids).all():
            raise UserError(f"the {split} split holds no known word to mask; give more text")
        return ResumableLoader.of(
            blocks,
            settings,
            Collate(data.tokenizer.pad_id),
            train=train,
            seed=seed,
            rank=rank,
            world_size=world_size,
            name=f"the {split} split",
        )

    return loader("train", train=True), loader("valid", train=False), loader("test", train=False)


def save_test(loader: ResumableLoader, file: Path, pad_id: int = 0) -> None:
    """Write the samples of a loader whose masks are fixed, so that a test can be repeated."""
    examples = [loader.samples[0, index] for index in range(len(loader.samples))]
    ids, real = padded([example.ids for example in examples], pad_id)
    np.savez_compressed(
        file,
        ids=ids.astype(np.uint32),
        lengths=real.sum(1),
        counts=np.array([len(example.positions) for example in examples]),
        positions=np.concatenate([e.positions for e in examples]).astype(np.uint32),
        targets=np.concatenate([e.targets for e in examples]).astype(np.uint32),
    )


def load_test(file: Path, settings: Data, pad_id: int = 0) -> ResumableLoader:
    """A loader of what `save_test` wrote."""
    return ResumableLoader.of(StoredBlocks(file), settings, Collate(pad_id), name=str(file))
