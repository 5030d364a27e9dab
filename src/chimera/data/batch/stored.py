"""Test sets in files, so that a test can be repeated without its corpus.

A test set that is too large to copy into each run is a reference to its tokens in the cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from chimera.data.batch.collate import Example
from chimera.data.encode.packing import PackedTokens
from chimera.data.source.cache import sha256_of
from chimera.data.source.files import parsing, read_arrays, save_arrays
from chimera.errors import UserError

#: Most tokens of a test set that is copied into a run.
LARGEST_COPY = 1 << 24


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


def is_large(tokens: Any) -> bool:
    """Whether a row of tokens in files is referred to instead of copied."""
    return isinstance(tokens, PackedTokens) and len(tokens) > LARGEST_COPY


def refer(file: Path, tokens: PackedTokens, **facts: Any) -> None:
    """Write a reference: names and hashes of the files with the tokens.

    Args:
        file: to write.
        tokens: in files.
        facts: numbers that are needed to read the test set again.
    """
    values: dict[str, Any] = {
        "reference": [str(part.resolve()) for part in tokens.files],
        "sha256": [sha256_of(part) for part in tokens.files],
        "dtype": tokens.dtype,
        **facts,
    }
    arrays: Any = {name: np.array(value) for name, value in values.items()}
    save_arrays(file, **arrays)


def referred(file: Path, *facts: str) -> tuple[PackedTokens, dict[str, npt.NDArray[Any]]] | None:
    """Tokens that a file refers to, and the facts of `refer`; None if it is no reference.

    Raises:
        UserError: the tokens are gone or are others now.
    """
    if "reference" not in read_arrays(file):
        return None
    stored = read_arrays(file, "reference", "sha256", "dtype", *facts)
    files = [Path(str(file)) for file in stored["reference"]]
    for part, digest in zip(files, stored["sha256"], strict=True):
        if not part.is_file() or sha256_of(part) != str(digest):
            raise UserError(
                f"the test set is in {part}, which {'changed' if part.is_file() else 'is gone'};"
                " start the run's own command again to prepare the same data"
            )
    tokens = PackedTokens(tuple(files), str(stored["dtype"]))
    return tokens, {name: stored[name] for name in facts}


def separator_of(file: Path) -> int:
    """The separator of documents that a module of packed tokens wrote with its test set."""
    with parsing(file, "a test set"):
        return int(read_arrays(file, "sep")["sep"])


def places(file: Path) -> set[Path]:
    """Folders of the tokens that a test set refers to; empty if it has them itself."""
    try:
        stored = read_arrays(file, "reference") if file.is_file() else {}
    except UserError:
        return set()
    return {Path(str(part)).parent for part in stored.get("reference", ())}
