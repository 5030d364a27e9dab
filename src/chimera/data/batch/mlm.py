"""Batches for masked language modelling from packed tokens; the test set in a file.

The masking is BERT's (arXiv 1810.04805, 3.1), drawn for each block from its own random stream.
Exactly round(ratio·n) tokens of a block of n are predicted, at least one, and no special tokens. Of
these 80 % are replaced by [MASK], 10 % by a random token, and 10 % are unchanged.

A batch is a dict:

    ids      int64 [b t], masked
    mask     bool [b t], True = real; None without padding
    index    int64 [n], predicted positions in b·t order
    targets  int64 [n], the original tokens
    indices  int64 [b], numbers of the samples
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from chimera.data.batch.collate import Example, collate, load_examples, save_examples
from chimera.data.batch.loader import InOrder, Key, Purpose, Samples, Streams
from chimera.data.batch.module import DataModule, Loadable
from chimera.data.batch.packed import (
    PIECE,
    Blocks,
    MixedBlocks,
    blocks_of,
    documents_of,
    is_large,
    keep_apart,
    refer,
    referred,
)
from chimera.data.encode.prepare import Prepared
from chimera.data.source.files import parsing, read_arrays
from chimera.data.source.splits import Split
from chimera.data.tokenizer.base import Ids, TokenizerSettings
from chimera.errors import UserError

#: Epoch and seed of the masks of validation and test; training never reaches this epoch. All
#: validations of all runs have the same masks, so their results are comparable.
FIXED_EPOCH = 1 << 62
FIXED_SEED = 0


class Masked(NamedTuple):
    """A masked block: the model's input ids [t], predicted positions [n], original tokens [n]."""

    ids: Ids
    positions: Ids
    targets: Ids


class Masking:
    """Mask blocks of token ids.

    Args:
        tokenizer: an object with `vocab_size`, `special_ids` and `mask_id`.
        ratio: share of the tokens that are predicted.

    Raises:
        UserError: the vocabulary has no [MASK].
    """

    def __init__(self, tokenizer: Any, ratio: float) -> None:
        if tokenizer.mask_id is None:
            raise UserError(
                "task=mlm needs a [MASK] token, which this tokenizer lacks;"
                " use tokenizer.mlm_tokens=true or another tokenizer"
            )
        self.tokenizer = tokenizer
        self.ratio = ratio
        self.mask_id = tokenizer.mask_id
        self.special = np.zeros(tokenizer.vocab_size, dtype=bool)
        self.special[list(tokenizer.special_ids)] = True
        self.ordinary = np.flatnonzero(~self.special)

    def __call__(self, block: Ids, rng: np.random.Generator) -> Masked:
        """Mask a block [t]; a block with too few ordinary tokens has fewer positions."""
        candidates = np.flatnonzero(~self.special[block])
        count = min(len(candidates), max(1, round(self.ratio * len(block))))
        positions = np.sort(rng.permutation(candidates)[:count])
        uniform = rng.random(count)
        ids = block.copy()
        ids[positions[uniform < 0.8]] = self.mask_id
        replaced = positions[uniform >= 0.9]
        ids[replaced] = self.ordinary[rng.integers(0, len(self.ordinary), len(replaced))]
        return Masked(ids, positions, block[positions])


class MaskedBlocks:
    """Masked blocks by (epoch, index); masks are a function of (seed, epoch, index).

    Args:
        blocks: to mask.
        masking: masks a block.
        seed: of the masks; None uses the same masks in all epochs.
    """

    def __init__(self, blocks: Blocks | MixedBlocks, masking: Masking, seed: int | None) -> None:
        self.blocks = blocks
        self.masking = masking
        self.fixed = seed is None
        self.streams = Streams(Purpose.MASK, FIXED_SEED if seed is None else seed)

    def __len__(self) -> int:
        return len(self.blocks)

    def __getitem__(self, key: Key) -> Example:
        number, ids = self.blocks[key]
        rng = self.streams(FIXED_EPOCH if self.fixed else key[0], number)
        return Example(number, *self.masking(ids, rng))


def cut(example: Example, sep_id: int) -> Iterator[Example]:
    """Cut a masked block into its documents."""
    for number, (start, ids) in enumerate(documents_of(example.ids, sep_id)):
        inside = (example.positions >= start) & (example.positions < start + len(ids))
        positions = example.positions[inside] - start
        yield Example(example.number + number * PIECE, ids, positions, example.targets[inside])


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
        row = self.prepared.splits["test"]
        tokenizer = self.prepared.tokenizer
        if is_large(row):
            refer(
                file,
                row,
                length=self.corpus.seq_len,
                ratio=self.mask_ratio,
                vocab_size=tokenizer.vocab_size,
                special_ids=list(tokenizer.special_ids),
                mask_id=tokenizer.mask_id,
                sep=tokenizer.sep_id,
            )
        else:
            samples = self.test_dataloader().samples
            examples = [samples[0, index] for index in range(len(samples))]
            save_examples(examples, file, sep=tokenizer.sep_id)

    def _samples(self, split: Split) -> Loadable:
        tokens = self.prepared.splits[split]
        tokenizer = self.prepared.tokenizer
        blocks = blocks_of(tokens, self.corpus.seq_len, self.seed)
        masking = Masking(tokenizer, self.mask_ratio)
        if np.isin(tokens.ids[: 1 << 20], tokenizer.special_ids).all():
            raise UserError(f"the {split} split holds no known word to mask; give another text")
        seed = self.seed if split == "train" else None
        return self._loadable(
            MaskedBlocks(blocks, masking, seed), tokenizer.pad_id, tokenizer.sep_id
        )

    def _stored(self, file: Path) -> Loadable:
        stored = read_arrays(file, "sep")
        with parsing(file, "a test set"):
            samples: Samples[Example]
            if tokens := referred(stored):
                vocabulary = SimpleNamespace(
                    vocab_size=int(stored["vocab_size"]),
                    special_ids=stored["special_ids"].tolist(),
                    mask_id=int(stored["mask_id"]),
                )
                masking = Masking(vocabulary, float(stored["ratio"]))
                samples = MaskedBlocks(Blocks(tokens, int(stored["length"])), masking, None)
            else:
                samples = InOrder(load_examples(file))
            return self._loadable(samples, 0, int(stored["sep"]))

    def _loadable(self, samples: Samples[Example], pad_id: int, sep_id: int) -> Loadable:
        whole = partial(collate, pad_id=pad_id)
        return samples, keep_apart(self.boundaries, whole, cut, sep_id, causal=False)
