"""Batches of labelled examples, padded to the longest of each batch; the test set in a file.

A batch is a dict:

    ids       int64 [b t]
    mask      bool [b t], True = real; None without padding
    segments  int64 [b t], 1 in the second text
    labels    float [b], NaN without a label
    parts     int64 [b], number of the part of each example
    indices   int64 [b], numbers of the samples
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
import torch

from chimera.data.batch.collate import mask_of, padded
from chimera.data.batch.loader import Batch, Key, Order, Positions, Purpose, ResumableLoader, stream
from chimera.data.batch.module import DataModule, Loadable
from chimera.data.corpus.labelled import check_labelled
from chimera.data.encode.examples import Encoded, load_parts, prepare_examples, save_parts
from chimera.data.encode.prepare import Prepared
from chimera.data.source.splits import Split
from chimera.data.tokenizer.base import Ids

#: Number of batches whose examples are sorted by length together. It is large enough to avoid most
#: of the padding and small enough that batches stay nearly random.
POOL = 50


class Row(NamedTuple):
    """One example: its number among all samples, number of its part, ids [t], second text, label.

    `seconds` counts the tokens at the end that belong to the second text.
    """

    number: int
    part: int
    ids: Ids
    seconds: int
    label: float


class Rows:
    """Examples of one or more parts by (epoch, index); the same in all epochs.

    Args:
        parts: of the examples.
        longest_left_out: see `Labelled.revision`.
    """

    def __init__(self, parts: Sequence[Encoded], *, longest_left_out: bool = False) -> None:
        self.parts = parts
        self.longest_left_out = longest_left_out
        self.starts = np.cumsum([0, *map(len, parts)])
        self.lengths = np.concatenate([part.lengths for part in parts])

    def __len__(self) -> int:
        return int(self.starts[-1])

    def __getitem__(self, key: Key) -> Row:
        number = key[1]
        part = int(np.searchsorted(self.starts, number, side="right")) - 1
        examples = self.parts[part]
        at = number - int(self.starts[part])
        return Row(
            number, part, examples.row(at), int(examples.seconds[at]), float(examples.labels[at])
        )


def collate(rows: Sequence[Row], *, pad_id: int) -> Batch:
    """Make a batch of rows, padded on the right."""
    ids, real = padded([row.ids for row in rows], pad_id)
    starts = real.sum(1) - np.array([row.seconds for row in rows])
    segments = real & (np.arange(ids.shape[1]) >= starts[:, None])
    return {
        "ids": torch.from_numpy(ids),
        "mask": mask_of(real),
        "segments": torch.from_numpy(segments.astype(np.int64)),
        "labels": torch.tensor([row.label for row in rows]),
        "parts": torch.tensor([row.part for row in rows]),
        "indices": torch.tensor([row.number for row in rows]),
    }


class BucketedLoader(ResumableLoader):
    """Loader that batches examples of similar length, to reduce padding.

    It shuffles the examples of an epoch, leaves out those at the end that make no whole batch,
    sorts the others by length within pools of batches, and shuffles the batches. The order is a
    function of (seed, epoch), as in the base class.
    """

    samples: Rows

    def _order(self, epoch: int) -> Order:
        order = super()._order(epoch)(np.arange(len(self.samples)))
        size = self.batch_size
        full = len(order) // size * size
        lengths = self.samples.lengths
        sorts = len(order) if self.samples.longest_left_out else full
        pools = np.split(order[:sorts], range(POOL * size, sorts, POOL * size))
        ordered = [pool[np.argsort(lengths[pool], kind="stable")] for pool in pools]
        order = np.concatenate([*ordered, order[sorts:]])
        batches = order[:full].reshape(-1, size)
        shuffled = stream(Purpose.ORDER, self.seed, epoch, 1).permutation(batches)
        bucketed: Positions = np.concatenate([shuffled.ravel(), order[full:]])
        return bucketed.__getitem__


class LabelledDataModule(DataModule):
    """Labelled examples: batched by similar length in train, in order in validation and test."""

    train_loader = BucketedLoader

    def parts(self, split: Split) -> dict[str, Encoded]:
        """Parts of a split by name; for instance, MNLI's valid split has two.

        If the data set has no test part, the test uses the valid parts.
        """
        if split == "test" and self.test_file is not None:
            return load_parts(self.test_file)
        parts = self.prepared.splits
        valid = {name: part for name, part in parts.items() if name.startswith("valid")}
        test = {n: p for n, p in parts.items() if n not in valid and n != "train"}
        return {"train": {"train": parts["train"]}, "valid": valid, "test": test or valid}[split]

    def save_test(self, file: Path) -> None:
        save_parts(self.parts("test"), file)

    def lengthened(self, length: int) -> Self:
        data = super().lengthened(length)
        data._prepared = None  # the ids were cut to the old length
        return data

    def _prepare(self) -> Prepared:
        check_labelled(self.corpus)
        return prepare_examples(self.corpus, self.tokenizer_settings)

    def _samples(self, split: Split) -> Loadable:
        rows = Rows(list(self.parts(split).values()), longest_left_out=self.corpus.revision is None)
        return rows, partial(collate, pad_id=self.prepared.tokenizer.pad_id)

    def _stored(self, file: Path) -> Loadable:
        return Rows(list(load_parts(file).values())), partial(collate, pad_id=0)
