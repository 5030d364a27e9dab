"""Batches of synthetic sequences; the test set in a file.

A batch is a dict:

    ids      int64 [b t]
    mask     None: all sequences of a split have one length
    index    int64 [n], positions that ask for an answer, in b·t order
    targets  int64 [n], their answers
    groups   int64 [n], number of the group of each answer
    right    int64 [n], bit s is set where symbol s is a right answer; only of some data sets
    indices  int64 [b], numbers of the samples
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch

from chimera.data.batch.loader import Batch, InOrder
from chimera.data.batch.module import DataModule, Loadable
from chimera.data.corpus.synthetic.base import UNASKED, Sequences, Synthetic, check_synthetic
from chimera.data.encode.prepare import Prepared
from chimera.data.source.files import read_arrays, save_arrays
from chimera.data.source.splits import Split
from chimera.data.tokenizer.symbols import Symbols
from chimera.errors import UserError


def collate(numbers: Sequence[int], *, sequences: Sequences) -> Batch:
    """Make a batch of the sequences with these numbers."""
    rows = np.array(numbers)
    targets = sequences.targets[rows].ravel()
    index = np.flatnonzero(targets != UNASKED)
    parts = {
        "ids": sequences.ids[rows],
        "index": index,
        "targets": targets[index],
        "groups": sequences.groups[rows].ravel()[index],
        "indices": rows,
    }
    if sequences.right is not None:
        parts["right"] = sequences.right[rows].ravel()[index]
    batch: Batch = {k: torch.from_numpy(v.astype(np.int64)) for k, v in parts.items()}
    return {**batch, "mask": None}


class SyntheticDataModule(DataModule):
    """Sequences of symbols; the positions that ask for an answer are predicted."""

    corpus: Synthetic

    def save_test(self, file: Path) -> None:
        """Write the arrays of the test split."""
        sequences: Sequences = self.prepared.splits["test"]
        arrays: Any = {k: v for k, v in sequences._asdict().items() if v is not None}
        save_arrays(file, **arrays)

    def lengthened(self, length: int) -> Self:
        """The same data with validation and test sequences of another length, drawn anew.

        Raises:
            UserError: they are too short for such sequences.
        """
        data = copy.copy(self)
        data.corpus = replace(self.corpus, test_len=length)
        data.corpus.check()
        data.test_file = None
        data._prepared = None
        data._loaders = {}
        return data

    def _prepare(self) -> Prepared:
        check_synthetic(self.corpus)
        corpus = self.corpus
        settings = self.tokenizer_settings
        if not isinstance(settings, Symbols):
            raise UserError("the answers of task=synthetic are symbols; add tokenizer=symbols")
        if settings.size < corpus.vocabulary:
            raise UserError(
                f"tokenizer.size={settings.size} is less than data.vocabulary="
                f"{corpus.vocabulary}; leave it out, or give at least that"
            )
        names: tuple[Split, ...] = ("train", "valid", "test")
        splits: dict[str, Sequences] = {split: corpus.sequences(split) for split in names}
        digest = hashlib.sha256()
        for sequences in splits.values():
            digest.update(sequences.ids.tobytes() + sequences.targets.tobytes())
        counts = {
            split: {"documents": len(s.ids), "tokens": s.ids.size} for split, s in splits.items()
        }
        report = {
            "corpus_sha256": corpus.fingerprint(),
            "tokens_sha256": digest.hexdigest(),
            "splits": counts,
        }
        return Prepared(settings.build(()), splits, report)

    def _samples(self, split: Split) -> Loadable:
        return self._loadable(self.prepared.splits[split])

    def _stored(self, file: Path) -> Loadable:
        return self._loadable(Sequences(**read_arrays(file, "ids", "targets", "groups")))

    def _loadable(self, sequences: Sequences) -> Loadable:
        return InOrder(range(len(sequences.ids))), partial(collate, sequences=sequences)
