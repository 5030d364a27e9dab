"""Notes on the documents of a text that may be larger than memory: hash and size of each, in files.

The notes of a part (a file of the text) are whole or absent.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from chimera.data.encode.workers import FOR_ONE_PROCESS, in_order
from chimera.data.source.splits import SHARES, Split, digest_of

_NOTE = np.dtype([("digest", "<u8"), ("characters", "<u4"), ("letters", "<u4"), ("bytes", "<u4")])
_AT_ONCE = 1 << 16  # notes in memory
_WRITTEN_AT_ONCE = 1 << 10
_BUCKET = 1 << 21  # digests that are compared at once to find equal documents


def write_all(work: list[tuple[Path, Iterable[str]]], processes: int) -> None:
    """Write notes; processes are started once this one has read `FOR_ONE_PROCESS` bytes."""
    size = 0
    for done, each in enumerate(work, 1):
        size += write_notes(each)
        if size > FOR_ONE_PROCESS and done < len(work):
            for _ in in_order(write_notes, work[done:], min(processes, len(work) - done)):
                pass
            return


def write_notes(work: tuple[Path, Iterable[str]]) -> int:
    """Write the notes of a part; return its bytes."""
    file, documents = work
    temporary = file.with_suffix(".writing")
    size = 0
    remaining = iter(documents)
    with temporary.open("wb") as stream:
        while notes := [_note(document) for document in islice(remaining, _WRITTEN_AT_ONCE)]:
            rows = np.array(notes, dtype=_NOTE)
            stream.write(rows.tobytes())
            size += int(rows["bytes"].sum())
    os.replace(temporary, file)
    return size


def _note(document: str) -> tuple[int, int, int, int]:
    characters = len(document)
    letters = characters - document.count("\n")
    return digest_of(document), characters, letters, len(document.encode())


@dataclass(frozen=True)
class Notes:
    """Notes of all documents of a split's parts, in files."""

    files: tuple[Path, ...]

    @classmethod
    def of(cls, folder: Path, split: Split) -> Notes:
        """The notes in a folder."""
        return cls(tuple(sorted(folder.glob(f"{split}-*.notes"))))

    @cached_property
    def counts(self) -> list[int]:
        """Documents of each part."""
        return [file.stat().st_size // _NOTE.itemsize for file in self.files]

    def __len__(self) -> int:
        return sum(self.counts)

    def chunks(self) -> Iterator[tuple[int, npt.NDArray[Any]]]:
        """Index of the first note and the notes, a bounded number at once."""
        first = 0
        for file, count in zip(self.files, self.counts, strict=True):
            for start in range(0, count, _AT_ONCE):
                offset = start * _NOTE.itemsize
                yield first + start, np.fromfile(file, _NOTE, count=_AT_ONCE, offset=offset)
            first += count


@dataclass(frozen=True)
class Equal:
    """Finds equal documents by the first 64 bits of their hashes.

    Args:
        notes: of each split. A document of test is kept before one of valid and of train.
    """

    notes: dict[Split, Notes]

    def dropped(self) -> dict[Split, npt.NDArray[np.int64]]:
        """Indices of the documents that are equal to one kept before."""
        found: dict[Split, list[npt.NDArray[np.int64]]] = {split: [] for split in self.notes}
        bits = max(0, (sum(map(len, self.notes.values())) // _BUCKET).bit_length())
        for bucket in range(1 << bits):
            seen = np.empty(0, dtype=np.uint64)
            for split in reversed(SHARES):
                if split in self.notes:
                    digests, indices = self._bucket(self.notes[split], bucket, bits)
                    unique, first = np.unique(digests, return_index=True)
                    again = np.ones(len(digests), dtype=bool)
                    again[first[~np.isin(unique, seen)]] = False
                    found[split].append(indices[again])
                    seen = np.union1d(seen, unique)
        return {split: np.sort(np.concatenate(parts)) for split, parts in found.items()}

    @staticmethod
    def _bucket(
        notes: Notes, bucket: int, bits: int
    ) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]:
        """Digests and indices of the documents whose hashes begin with the bits of the bucket."""
        digests = [np.empty(0, np.uint64)]
        indices = [np.empty(0, np.int64)]
        for start, chunk in notes.chunks():
            head = chunk["digest"] >> np.uint64(64 - bits) if bits else np.zeros(len(chunk))
            inside = np.flatnonzero(head == bucket)
            digests.append(chunk["digest"][inside])
            indices.append(inside + start)
        return np.concatenate(digests), np.concatenate(indices)
