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

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from chimera.data.batch.collate import mask_of, padded
from chimera.data.batch.loader import Batch
from chimera.data.batch.module import DataModule, Loadable
from chimera.data.batch.packed import (
    PIECE,
    Block,
    blocks_of,
    documents_of,
    is_large,
    keep_apart,
    refer,
    referred,
)
from chimera.data.source.files import parsing, read_arrays, save_arrays
from chimera.data.source.splits import Split


def collate(blocks: Sequence[Block], *, pad_id: int) -> Batch:
    """Make a batch of blocks with the token that follows each, padded to the longest."""
    ids, real = padded([block.ids[:-1] for block in blocks], pad_id)
    mask = mask_of(real)
    return {
        "ids": torch.from_numpy(ids),
        "mask": mask,
        "index": None if mask is None else torch.from_numpy(np.flatnonzero(real)),
        "targets": torch.from_numpy(np.concatenate([block.ids[1:] for block in blocks])),
        "indices": torch.tensor([block.number for block in blocks]),
    }


def cut(block: Block, sep_id: int) -> Iterator[Block]:
    """Cut a block into its documents; a last token alone predicts nothing."""
    for number, (_, ids) in enumerate(documents_of(block.ids, sep_id)):
        if len(ids) > 1:
            yield Block(block.number + number * PIECE, ids)


class CausalDataModule(DataModule):
    """Blocks of packed tokens: whole blocks in train, all tokens in validation and test."""

    def save_test(self, file: Path) -> None:
        """Write the row of tokens, so that the test can be repeated at any length.

        Of a large row write a reference.
        """
        row = self.prepared.splits["test"]
        separator: dict[str, Any] = {"sep": self.prepared.tokenizer.sep_id}
        if is_large(row):
            refer(file, row, **separator)
        else:
            save_arrays(file, ids=np.asarray(row.ids[:]), **separator)

    def _samples(self, split: Split) -> Loadable:
        row = self.prepared.splits[split]
        tokenizer = self.prepared.tokenizer
        return self._blocks(row, tokenizer.pad_id, tokenizer.sep_id, tail=split != "train")

    def _stored(self, file: Path) -> Loadable:
        stored = read_arrays(file, "sep")
        with parsing(file, "a test set"):
            row = referred(stored) or SimpleNamespace(ids=stored["ids"])
            return self._blocks(row, 0, int(stored["sep"]), tail=True)

    def _blocks(self, row: Any, pad_id: int, sep_id: int, *, tail: bool) -> Loadable:
        blocks = blocks_of(row, self.corpus.seq_len, self.seed, following=1, tail=tail)
        whole = partial(collate, pad_id=pad_id)
        return blocks, keep_apart(self.boundaries, whole, cut, sep_id, causal=True)
