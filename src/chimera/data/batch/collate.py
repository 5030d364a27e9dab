"""Rows of tokens of any lengths made into one batch, padded on the right."""

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
    """A row of tokens with places where something is to be predicted, and which row it is."""

    number: int
    ids: Ids
    positions: Ids
    targets: Ids


def padded(rows: Sequence[Ids], pad_id: int) -> tuple[Ids, npt.NDArray[np.bool_]]:
    """Rows in one array, and where it is real."""
    lengths = np.array([len(row) for row in rows])
    ids = np.full((len(rows), lengths.max()), pad_id, dtype=np.int64)
    for line, row in zip(ids, rows, strict=True):
        line[: len(row)] = row
    return ids, np.arange(ids.shape[1]) < lengths[:, None]


def mask_of(real: npt.NDArray[np.bool_]) -> Tensor | None:
    """`mask` of a batch: None where nothing is padded."""
    return None if real.all() else torch.from_numpy(real)


class Collate:
    """Examples to a batch; `index` are their positions in b·t order."""

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
