"""Batches for masked language modelling, made from packed tokens; and the test set kept in a file.

A batch is a dict: `ids` int64 [b t] with holes, `mask` bool [b t] (True = real) or None where
nothing is padded, `index` int64 [n], the masked positions in b·t order, `targets` int64 [n], what
was there, and `indices` int64 [b], the samples' numbers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from chimera.data.batch.collate import Collate, Example, padded
from chimera.data.batch.loader import Key, ResumableLoader
from chimera.data.batch.masking import Masking
from chimera.data.batch.module import DataModule
from chimera.data.batch.streams import Purpose, stream
from chimera.data.encode.packing import PackedTokens
from chimera.data.encode.prepare import Prepared
from chimera.data.source.splits import Split
from chimera.data.tokenizer.base import TokenizerSettings
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


class MLMDataModule(DataModule):
    """Masked blocks: new masks in every epoch of train, the same ones in every validation and test.

    Args:
        mask_ratio: share of the tokens that are hidden.
    """

    def __init__(
        self,
        corpus: Any,
        tokenizer: TokenizerSettings,
        seed: int = 0,
        *,
        mask_ratio: float = 0.15,
        prepared: Prepared | None = None,
    ) -> None:
        super().__init__(corpus, tokenizer, seed, prepared=prepared)
        self.mask_ratio = mask_ratio

    def save_test(self, file: Path) -> None:
        save_test(self.test_dataloader(), file)

    def _make_loader(self, split: Split) -> ResumableLoader:
        tokens, tokenizer = self.prepared.splits[split], self.prepared.tokenizer
        train = split == "train"
        blocks = MaskedBlocks(
            tokens,
            self.corpus.seq_len,
            Masking(tokenizer, self.mask_ratio),
            seed=self.seed if train else FIXED_SEED,
            fixed=not train,
        )
        if np.isin(tokens.ids[: 1 << 20], tokenizer.special_ids).all():
            raise UserError(f"the {split} split holds no known word to mask; give more text")
        return ResumableLoader.of(
            blocks,
            self.corpus,
            Collate(tokenizer.pad_id),
            train=train,
            seed=self.seed,
            name=f"the {split} split",
        )

    def _make_test_loader(self, file: Path) -> ResumableLoader:
        return ResumableLoader.of(StoredBlocks(file), self.corpus, Collate(0), name=str(file))


def save_test(loader: ResumableLoader, file: Path, pad_id: int = 0) -> None:
    """Write the samples of a loader whose masks are fixed; `StoredBlocks` reads them."""
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
