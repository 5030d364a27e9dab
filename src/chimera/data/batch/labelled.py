"""Batches of labelled examples, padded to the longest of each; and the test set kept in a file.

A batch is a dict: `ids` int64 [b t], `mask` bool [b t] (True = real) or None where nothing is
padded, `segments` int64 [b t] (1 in the second text), `labels` float [b] (NaN: none), `parts`
int64 [b], which part an example is of, and `indices` int64 [b], the samples' numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import torch

from chimera.data.batch.collate import mask_of, padded
from chimera.data.batch.loader import Batch, Key, ResumableLoader
from chimera.data.batch.module import DataModule
from chimera.data.batch.streams import Purpose, stream
from chimera.data.corpus.base import Data
from chimera.data.corpus.labelled import check_labelled
from chimera.data.encode.examples import Encoded, prepare_examples
from chimera.data.encode.prepare import Prepared
from chimera.data.source.splits import Split
from chimera.data.tokenizer.base import Ids

#: Batches that are sorted by length together: padding falls by most of what it can, and a batch
#: still is as good as a random one.
POOL = 50


class Row(NamedTuple):
    """One example, and which one of which part."""

    number: int
    part: int
    ids: Ids
    seconds: int
    label: float


class Rows:
    """The examples of one or more parts by (epoch, index); the same in every epoch."""

    def __init__(self, parts: Sequence[Encoded]) -> None:
        self.parts = parts
        self.starts = np.cumsum([0, *map(len, parts)])
        self.lengths = np.concatenate([part.lengths for part in parts])

    def __len__(self) -> int:
        return int(self.starts[-1])

    def __getitem__(self, key: Key) -> Row:
        number = key[1]
        part = int(np.searchsorted(self.starts, number, side="right")) - 1
        examples, at = self.parts[part], number - int(self.starts[part])
        return Row(
            number, part, examples.row(at), int(examples.seconds[at]), float(examples.labels[at])
        )


class Collate:
    """Rows to a batch, padded on the right."""

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
    """Batches examples of like length, which saves padding.

    The order of an epoch is shuffled, sorted by length within pools of batches, and then the
    batches are shuffled. It is a function of (seed, epoch), as its base's is.
    """

    samples: Rows

    def _order(self, epoch: int) -> npt.NDArray[np.int64]:
        order = super()._order(epoch)
        size = self.batch_size
        pools = np.split(order, range(POOL * size, len(order), POOL * size))
        lengths = self.samples.lengths
        order = np.concatenate([p[np.argsort(lengths[p], kind="stable")] for p in pools])
        full = len(order) // size * size
        batches = order[:full].reshape(-1, size)
        mixed = stream(Purpose.ORDER, self.seed, epoch, 1).permutation(batches)
        return np.concatenate([mixed.ravel(), order[full:]])


def loader(
    parts: Sequence[Encoded], settings: Data, pad_id: int, *, name: str, seed: int | None = None
) -> ResumableLoader:
    """A loader of parts: bucketed and shuffled with a seed; in order, and all of it, without."""
    loader_class = ResumableLoader if seed is None else BucketedLoader
    return loader_class.of(
        Rows(parts), settings, Collate(pad_id), train=seed is not None, seed=seed or 0, name=name
    )


class LabelledDataModule(DataModule):
    """Labelled examples, batched with others of like length in train, in order elsewhere."""

    def parts(self, split: Split) -> dict[str, Encoded]:
        """The parts of a split by name; MNLI's valid split has two.

        Without a part to test on, the valid parts are tested, as all that there are labels for.
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
        other = super().lengthened(length)
        other._prepared = None  # the ids are cut to a length
        return other

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
    """Write parts, so that a test can be repeated from the file alone."""
    arrays = {
        f"{part}/{k}": v for part, examples in parts.items() for k, v in vars(examples).items()
    }
    np.savez_compressed(file, **arrays)


def load_parts(file: Path) -> dict[str, Encoded]:
    """What `save_parts` wrote."""
    parts: dict[str, dict[str, Any]] = {}
    with np.load(file) as stored:
        for key in stored.files:
            part, _, name = key.rpartition("/")
            parts.setdefault(part, {})[name] = stored[key]
    return {part: Encoded(**arrays) for part, arrays in parts.items()}
