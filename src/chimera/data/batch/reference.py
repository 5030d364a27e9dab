"""A test set that is too large to copy into each run: a reference to its tokens in the cache."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from chimera.data.encode.packing import PackedTokens
from chimera.data.source.arrays import read_arrays
from chimera.data.source.cache import MANIFEST
from chimera.errors import UserError

#: Most tokens of a test set that is copied into a run.
LARGEST_COPY = 1 << 24


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
    shards = tokens.files
    values: dict[str, Any] = {
        "reference": [str(shard.resolve()) for shard in shards],
        "sha256": [_noted(shard) or _digest(shard) for shard in shards],
        "dtype": tokens.dtype,
        **facts,
    }
    arrays: Any = {name: np.array(value) for name, value in values.items()}
    np.savez(file, **arrays)


def referred(file: Path, *facts: str) -> tuple[PackedTokens, dict[str, npt.NDArray[Any]]] | None:
    """Tokens that a file refers to, and the facts of `refer`; None if it is no reference.

    Raises:
        UserError: the tokens are gone or are others now.
    """
    stored = read_arrays(file)
    if "reference" not in stored:
        return None
    stored = read_arrays(file, "reference", "sha256", "dtype", *facts)
    shards = [Path(str(shard)) for shard in stored["reference"]]
    for shard, digest in zip(shards, stored["sha256"], strict=True):
        if not shard.is_file() or _digest(shard) != str(digest):
            raise UserError(
                f"the test set is in {shard}, which {'changed' if shard.is_file() else 'is gone'};"
                " start the run's own command again to prepare the same data"
            )
    tokens = PackedTokens(shards[0], str(stored["dtype"]), tuple(shards))
    return tokens, {name: stored[name] for name in facts}


def _noted(file: Path) -> str | None:
    """Hash of a file by the manifest of the cache."""
    try:
        files: dict[str, str] = json.loads((file.parent / MANIFEST).read_text())["files"]
        return files[file.name]
    except (OSError, ValueError, KeyError):
        return None


def _digest(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def places(file: Path) -> set[Path]:
    """Folders of the tokens that a test set refers to; empty if it has them itself."""
    try:
        stored = read_arrays(file, "reference") if file.is_file() else {}
    except UserError:
        return set()
    return {Path(str(shard)).parent for shard in stored.get("reference", ())}
