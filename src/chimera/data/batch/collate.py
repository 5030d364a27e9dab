"""Examples with predictions at some positions: padded on the right in a batch; in a file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from chimera.data.batch.loader import Batch
from chimera.data.source.files import parsing, read_arrays, save_arrays
from chimera.data.tokenizer.base import Ids
from chimera.errors import UserError


class Example(NamedTuple):
    """Number of a row, its ids [t], positions of predictions [n], and their targets [n]."""

    number: int
    ids: Ids
    positions: Ids
    targets: Ids


def padded(rows: Sequence[Ids], pad_id: int, width: int = 0) -> tuple[Ids, npt.NDArray[np.bool_]]:
    """Pad rows on the right to one array [b t], t ≥ width; also return where tokens are real."""
    lengths = np.array([len(row) for row in rows])
    ids = np.full((len(rows), max(lengths.max(), width)), pad_id, dtype=np.int64)
    for padded_row, row in zip(ids, rows, strict=True):
        padded_row[: len(row)] = row
    return ids, np.arange(ids.shape[1]) < lengths[:, None]


def mask_of(real: npt.NDArray[np.bool_]) -> Tensor | None:
    """`mask` of a batch [b t]; None without padding."""
    return None if real.all() else torch.from_numpy(real)


def collate(examples: Sequence[Example], *, pad_id: int, width: int = 0) -> Batch:
    """Make a batch of examples, at least `width` tokens wide.

    `index` [n] holds the positions of predictions in b·t order.
    """
    ids, real = padded([example.ids for example in examples], pad_id, width)
    index = [row * ids.shape[1] + example.positions for row, example in enumerate(examples)]
    return {
        "ids": torch.from_numpy(ids),
        "mask": mask_of(real),
        "index": torch.from_numpy(np.concatenate(index)),
        "targets": torch.from_numpy(np.concatenate([e.targets for e in examples])),
        "indices": torch.tensor([example.number for example in examples]),
    }


def save_examples(examples: Sequence[Example], file: Path, **facts: Any) -> None:
    """Write examples and further numbers to a file."""
    arrays: dict[str, Any] = {
        "ids": np.concatenate([e.ids for e in examples]).astype(np.uint32),
        "lengths": np.array([len(e.ids) for e in examples]),
        "counts": np.array([len(e.positions) for e in examples]),
        "positions": np.concatenate([e.positions for e in examples]).astype(np.uint32),
        "targets": np.concatenate([e.targets for e in examples]).astype(np.uint32),
        **facts,
    }
    save_arrays(file, **arrays)


def load_examples(file: Path) -> list[Example]:
    """Read the examples that `save_examples` wrote.

    Raises:
        UserError: the file holds something else.
    """
    stored = read_arrays(file, "ids", "lengths", "counts", "positions", "targets")
    bounds = {"ids": "lengths", "positions": "counts", "targets": "counts"}
    with parsing(file, "a test set"):
        for name, sizes in bounds.items():
            if stored[sizes].min() < 0 or stored[sizes].sum() != len(stored[name]):
                raise UserError(f"{file} is damaged: {name} and {sizes} do not fit")
        columns = [
            np.split(stored[name].astype(np.int64), np.cumsum(stored[sizes])[:-1])
            for name, sizes in bounds.items()
        ]
        return [Example(i, *parts) for i, parts in enumerate(zip(*columns, strict=True))]
