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

from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import torch

from chimera.data.batch.collate import mask_of, padded
from chimera.data.batch.loader import Batch, Key, ResumableLoader
from chimera.data.batch.module import DataModule
from chimera.data.batch.order import Order, Positions
from chimera.data.batch.streams import Purpose, stream
from chimera.data.corpus.base import Data
from chimera.data.corpus.labelled import check_labelled
from chimera.data.encode.examples import Encoded, prepare_examples
from chimera.data.encode.prepare import Prepared
from chimera.data.source.arrays import read_arrays
from chimera.data.source.splits import Split
from chimera.data.tokenizer.base import Ids
from chimera.errors import UserError

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
    """Examples of one or more parts by (epoch, index); the same in all epochs."""

    def __init__(self, parts: Sequence[Encoded]) -> None:
        self.parts = parts
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


class Collate:
    """Make a batch of rows, padded on the right."""

    def __init__(self, pad_id: int) -> None:
        self.pad_id = pad_id

    def __call__(self, rows: Sequence[Row]) -> Batch:
        ids, real = padded([row.ids for row in rows], self.pad_id)
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

    It shuffles the examples of an epoch, sorts them by length within pools of batches, and shuffles
    the batches. The order is a function of (seed, epoch), as in the base class.
    """

    samples: Rows

    def _order(self, epoch: int) -> Order:
        order = super()._order(epoch)(np.arange(len(self.samples)))
        size = self.batch_size
        pools = np.split(order, range(POOL * size, len(order), POOL * size))
        lengths = self.samples.lengths
        order = np.concatenate([p[np.argsort(lengths[p], kind="stable")] for p in pools])
        full = len(order) // size * size
        batches = order[:full].reshape(-1, size)
        shuffled = stream(Purpose.ORDER, self.seed, epoch, 1).permutation(batches)
        bucketed: Positions = np.concatenate([shuffled.ravel(), order[full:]])
        return bucketed.__getitem__


def loader(
    parts: Sequence[Encoded], settings: Data, pad_id: int, *, name: str, seed: int | None = None
) -> ResumableLoader:
    """Make a loader of parts: bucketed and shuffled with a seed, else all examples in order."""
    loader_class = ResumableLoader if seed is None else BucketedLoader
    return loader_class.of(
        Rows(parts), settings, Collate(pad_id), train=seed is not None, seed=seed or 0, name=name
    )


class LabelledDataModule(DataModule):
    """Labelled examples: batched by similar length in train, in order in validation and test."""

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

    def _make_loader(self, split: Split) -> ResumableLoader:
        parts = list(self.parts(split).values())
        seed = self.seed if split == "train" else None
        pad_id = self.prepared.tokenizer.pad_id
        return loader(parts, self.corpus, pad_id, name=f"the {split} part", seed=seed)

    def _make_test_loader(self, file: Path) -> ResumableLoader:
        return loader(list(load_parts(file).values()), self.corpus, 0, name=str(file))


def save_parts(parts: Mapping[str, Encoded], file: Path) -> None:
    """Write parts to a file, so that the test can be repeated without the corpus."""
    arrays = {
        f"{part}/{k}": v for part, examples in parts.items() for k, v in vars(examples).items()
    }
    np.savez_compressed(file, **arrays)


def load_parts(file: Path) -> dict[str, Encoded]:
    """Read the parts that `save_parts` wrote.

    Raises:
        UserError: the file holds something else.
    """
    parts: dict[str, dict[str, Any]] = {}
    for key, array in read_arrays(file).items():
        part, _, name = key.rpartition("/")
        parts.setdefault(part, {})[name] = array
    names = {field.name for field in fields(Encoded)}
    for part, arrays in parts.items():
        if set(arrays) != names:
            raise UserError(f"{file}: {part or 'it'} holds {', '.join(arrays)}, no examples")
    return {part: Encoded(**arrays) for part, arrays in parts.items()}
