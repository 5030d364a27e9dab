"""Batches for masked language modelling from packed tokens; the test set in a file.

A batch is a dict:

    ids      int64 [b t], masked
    mask     bool [b t], True = real; None without padding
    index    int64 [n], predicted positions in b·t order
    targets  int64 [n], the original tokens
    indices  int64 [b], numbers of the samples
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from chimera.data.batch.boundaries import (
    PIECE,
    are_apart,
    boundaries_of,
    documents_of,
    kept_apart,
    stored_separator,
)
from chimera.data.batch.collate import Collate, Example, padded
from chimera.data.batch.loader import Batch, Key, ResumableLoader
from chimera.data.batch.masking import Masking
from chimera.data.batch.mixing import MixedRow
from chimera.data.batch.module import DataModule
from chimera.data.batch.reference import is_large, refer, referred
from chimera.data.batch.streams import Purpose, stream
from chimera.data.encode.mixing import MixedTokens
from chimera.data.encode.packing import PackedTokens
from chimera.data.encode.prepare import Prepared
from chimera.data.source.arrays import read_arrays
from chimera.data.source.splits import Split
from chimera.data.tokenizer.base import TokenizerSettings
from chimera.errors import UserError

#: Epoch and seed of the masks of validation and test; training never reaches this epoch. All
#: validations of all runs have the same masks, so their results are comparable.
FIXED_EPOCH = 1 << 62
FIXED_SEED = 0


class MaskedBlocks:
    """Masked blocks of one split by (epoch, index); masks are a function of (seed, epoch, index).

    Args:
        tokens: of the split.
        length: tokens per block.
        masking: masks a block.
        seed: of the masks.
        fixed: use the same masks in all epochs.
    """

    def __init__(
        self,
        tokens: PackedTokens | MixedRow,
        length: int,
        masking: Masking,
        *,
        seed: int,
        fixed: bool,
    ) -> None:
        self.tokens = tokens
        self.length = length
        self.masking = masking
        self.seed = seed
        self.fixed = fixed

    def __len__(self) -> int:
        return self.tokens.blocks(self.length)

    def __getitem__(self, key: Key) -> Example:
        epoch, index = key
        rng = stream(Purpose.MASK, self.seed, FIXED_EPOCH if self.fixed else epoch, index)
        return Example(index, *self.masking(self.tokens.block(index, self.length, epoch), rng))


class StoredBlocks:
    """Masked blocks from a file that `save_test` wrote."""

    def __init__(self, file: Path) -> None:
        stored = read_arrays(file, "ids", "lengths", "positions", "targets", "counts")
        self.ids = stored["ids"].astype(np.int64)
        self.lengths = stored["lengths"]
        self.positions = stored["positions"]
        self.targets = stored["targets"]
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


@dataclass(frozen=True)
class StoredVocabulary:
    """Vocabulary of a reference to a test set."""

    vocab_size: int
    special_ids: tuple[int, ...]
    mask_id: int


def stored(file: Path) -> StoredBlocks | MaskedBlocks:
    """The test set of a file that `MLMDataModule.save_test` wrote."""
    found = referred(file, "length", "ratio", "vocab_size", "special_ids", "mask_id")
    if found is None:
        return StoredBlocks(file)
    tokens, facts = found
    special = tuple(facts["special_ids"].tolist())
    vocabulary = StoredVocabulary(int(facts["vocab_size"]), special, int(facts["mask_id"]))
    masking = Masking(vocabulary, float(facts["ratio"]))
    return MaskedBlocks(tokens, int(facts["length"]), masking, seed=FIXED_SEED, fixed=True)


class Cut:
    """Cuts a masked block into its documents."""

    def __init__(self, sep_id: int) -> None:
        self.sep_id = sep_id

    def __call__(self, example: Example) -> Iterator[Example]:
        for number, (start, ids) in enumerate(documents_of(example.ids, self.sep_id)):
            inside = (example.positions >= start) & (example.positions < start + len(ids))
            positions = example.positions[inside] - start
            targets = example.targets[inside]
            yield Example(example.number + number * PIECE, ids, positions, targets)


class MLMDataModule(DataModule):
    """Masked blocks: new masks in every epoch of train, the same ones in every validation and test.

    Args:
        mask_ratio: share of the tokens that are predicted.
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
        """Write the masked blocks; of a large split write a reference and how to mask it."""
        blocks = self.test_dataloader().samples
        apart = are_apart(self.corpus)
        separator = {"sep": self.prepared.tokenizer.sep_id} if apart else {}
        if isinstance(blocks, MaskedBlocks) and is_large(blocks.tokens):
            assert isinstance(blocks.tokens, PackedTokens)
            vocabulary = blocks.masking.tokenizer
            refer(
                file,
                blocks.tokens,
                length=blocks.length,
                ratio=blocks.masking.ratio,
                vocab_size=vocabulary.vocab_size,
                special_ids=list(vocabulary.special_ids),
                mask_id=vocabulary.mask_id,
                **separator,
            )
        else:
            save_test(self.test_dataloader(), file, **separator)

    def _make_loader(self, split: Split) -> ResumableLoader:
        tokens = self.prepared.splits[split]
        tokenizer = self.prepared.tokenizer
        train = split == "train"
        if isinstance(tokens, MixedTokens):
            tokens = MixedRow(tokens, self.corpus.seq_len, self.seed)
        blocks = MaskedBlocks(
            tokens,
            self.corpus.seq_len,
            Masking(tokenizer, self.mask_ratio),
            seed=self.seed if train else FIXED_SEED,
            fixed=not train,
        )
        if np.isin(tokens.ids[: 1 << 20], tokenizer.special_ids).all():
            raise UserError(f"the {split} split holds no known word to mask; give another text")
        return ResumableLoader.of(
            blocks,
            self.corpus,
            self._collate(tokenizer.pad_id, tokenizer.sep_id if are_apart(self.corpus) else None),
            train=train,
            seed=self.seed,
            name=f"the {split} split",
        )

    def _make_test_loader(self, file: Path) -> ResumableLoader:
        collate = self._collate(0, stored_separator(file) if are_apart(self.corpus) else None)
        return ResumableLoader.of(stored(file), self.corpus, collate, name=str(file))

    def _collate(self, pad_id: int, sep_id: int | None) -> Callable[[list[Any]], Batch]:
        if sep_id is None:
            return Collate(pad_id)
        boundaries = boundaries_of(self.corpus)
        return kept_apart(boundaries, Collate(pad_id), Cut(sep_id), sep_id, causal=False)


def save_test(loader: ResumableLoader, file: Path, pad_id: int = 0, **facts: int) -> None:
    """Write the samples of a loader with fixed masks to a file; `StoredBlocks` reads them."""
    examples = [loader.samples[0, index] for index in range(len(loader.samples))]
    ids, real = padded([example.ids for example in examples], pad_id)
    arrays: dict[str, Any] = {
        "ids": ids.astype(np.uint32),
        "lengths": real.sum(1),
        "counts": np.array([len(example.positions) for example in examples]),
        "positions": np.concatenate([e.positions for e in examples]).astype(np.uint32),
        "targets": np.concatenate([e.targets for e in examples]).astype(np.uint32),
        **facts,
    }
    np.savez_compressed(file, **arrays)
