"""Collate rows of tokens of different lengths into one batch, padded on the right."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from chimera.data.batch.loader import Batch
from chimera.data.tokenizer.base import Ids


class Example(NamedTuple):
    """Number of a row, its ids [t], positions of predictions [n], and their targets [n]."""

    number: int
    ids: Ids
    positions: Ids
    targets: Ids


def padded(rows: Sequence[Ids], pad_id: int) -> tuple[Ids, npt.NDArray[np.bool_]]:
    """Pad rows on the right to one array [b t]; also return where it holds real tokens [b t]."""
    lengths = np.array([len(row) for row in rows])
    ids = np.full((len(rows), lengths.max()), pad_id, dtype=np.int64)
    for padded_row, row in zip(ids, rows, strict=True):
        padded_row[: len(row)] = row
    return ids, np.arange(ids.shape[1]) < lengths[:, None]


def mask_of(real: npt.NDArray[np.bool_]) -> Tensor | None:
    """`mask` of a batch [b t]; None without padding."""
    return None if real.all() else torch.from_numpy(real)


class Collate:
    """Make a batch of examples; `index` [n] holds the positions of predictions in b·t order."""

    def __init__(self, pad_id: int) -> None:
        self.pad_id = pad_id

    def __call__(self, examples: Sequence[Example]) -> Batch:
        ids, real = padded([example.ids for example in examples], self.pad_id)
        index = [row * ids.shape[1] + example.positions for row, example in enumerate(examples)]
        return {
            "ids": torch.from_numpy(ids),
            "mask": mask_of(real),
            "index": torch.from_numpy(np.concatenate(index)),
            "targets": torch.from_numpy(np.concatenate([e.targets for e in examples])),
            "indices": torch.tensor([example.number for example in examples]),
        }
