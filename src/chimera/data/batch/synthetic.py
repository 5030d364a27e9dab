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
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch

from chimera.data.batch.loader import Batch, Key, ResumableLoader
from chimera.data.batch.module import DataModule
from chimera.data.corpus.synthetic.base import UNASKED, Sequences, Synthetic, check_synthetic
from chimera.data.encode.prepare import Prepared
from chimera.data.source.arrays import read_arrays
from chimera.data.source.splits import Split
from chimera.data.tokenizer.symbols import Symbols
from chimera.errors import UserError


class Numbers:
    """Numbers of samples by (epoch, index); the same in all epochs."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, key: Key) -> int:
        return key[1]


class Collate:
    """Make a batch of the sequences with these numbers."""

    def __init__(self, sequences: Sequences) -> None:
        self.sequences = sequences

    def __call__(self, numbers: Sequence[int]) -> Batch:
        rows = np.array(numbers)
        ids = self.sequences.ids[rows]
        targets = self.sequences.targets[rows].ravel()
        index = np.flatnonzero(targets != UNASKED)
        parts = {
            "ids": ids,
            "index": index,
            "targets": targets[index],
            "groups": self.sequences.groups[rows].ravel()[index],
            "indices": rows,
        }
        if self.sequences.right is not None:
            parts["right"] = self.sequences.right[rows].ravel()[index]
        batch: Batch = {k: torch.from_numpy(v.astype(np.int64)) for k, v in parts.items()}
        return {**batch, "mask": None}


class SyntheticDataModule(DataModule):
    """Sequences of symbols; the positions that ask for an answer are predicted."""

    corpus: Synthetic

    def save_test(self, file: Path) -> None:
        """Write the arrays of the test split."""
        np.savez_compressed(file, **_arrays(self.prepared.splits["test"]))

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

    def _make_loader(self, split: Split) -> ResumableLoader:
        return self._loader_of(self.prepared.splits[split], f"the {split} split", split == "train")

    def _make_test_loader(self, file: Path) -> ResumableLoader:
        stored = read_arrays(file, "ids", "targets", "groups")
        return self._loader_of(Sequences(**stored), str(file))

    def _loader_of(self, sequences: Sequences, name: str, train: bool = False) -> ResumableLoader:
        samples = Numbers(len(sequences.ids))
        seed = self.seed
        collate = Collate(sequences)
        return ResumableLoader.of(samples, self.corpus, collate, train=train, seed=seed, name=name)


def _arrays(sequences: Sequences) -> dict[str, Any]:
    return {name: array for name, array in sequences._asdict().items() if array is not None}
