"""Pack the documents of a split into one row of token ids, d₁ [SEP] d₂ [SEP] …, in mapped files.

A block is n consecutive tokens of the row. So there is no padding, and only the end of the row is
cut off. An id takes two bytes if the vocabulary has at most 2¹⁶ ids, else four.

Processes encode chunks of documents, and this process appends the results in order. So the files do
not depend on the number of processes. `PROGRESS` notes after every `_SAVED_BYTES` how far the files
are complete; a packing that was killed goes on from there, with the same files as a result.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt

from chimera.data.corpus.mixture import Recipe
from chimera.data.source.cache import read_note
from chimera.data.source.splits import SHARES, DividedText, Split
from chimera.data.source.workers import in_order
from chimera.data.tokenizer.base import Tokenizer
from chimera.safe_io import write_atomic

#: Part of the cache's key; raise it when the files' format changes.
VERSION = 3
PROGRESS = "progress.json"
_NONE = {"documents": 0, "bytes": 0, "tokens": 0}  # of a split
_SAVED_BYTES = 1 << 26
_CHUNK_CHARACTERS = 1 << 18  # of the documents that are encoded in one call
_CHUNK_DOCUMENTS = 500


@dataclass(frozen=True)
class PackedTokens:
    """A row of packed token ids, memory-mapped.

    Args:
        files: raw ids; the row is all of them, one after the other.
        dtype: numpy type of the ids in the files.
    """

    files: tuple[Path, ...]
    dtype: str

    @cached_property
    def ids(self) -> npt.NDArray[Any] | JoinedIds:
        """All ids: read from disk on access."""
        parts = [
            np.memmap(file, dtype=self.dtype, mode="r")
            if file.stat().st_size
            else np.empty(0, self.dtype)
            for file in self.files
        ]
        return parts[0] if len(parts) == 1 else JoinedIds(parts)

    def __len__(self) -> int:
        size: int = sum(file.stat().st_size for file in self.files)
        return size // np.dtype(self.dtype).itemsize

    def __getstate__(self) -> dict[str, Any]:
        # Worker processes map the files themselves; the ids are not sent to them.
        return {"files": self.files, "dtype": self.dtype}


@dataclass(frozen=True)
class MixedTokens:
    """Train tokens of several sources.

    Args:
        rows: of each source.
        recipe: how they are mixed.
    """

    rows: tuple[PackedTokens, ...]
    recipe: Recipe

    @cached_property
    def ids(self) -> JoinedIds:
        """Ids of all sources, each once, one source after the other."""
        return JoinedIds([row.ids for row in self.rows])

    def __len__(self) -> int:
        return sum(map(len, self.rows))

    def __getstate__(self) -> dict[str, object]:
        return {"rows": self.rows, "recipe": self.recipe}  # worker processes map the files


class JoinedIds:
    """Ids in several arrays that are sliced like one.

    Args:
        parts: arrays of ids [n].
    """

    def __init__(self, parts: Sequence[npt.NDArray[Any] | JoinedIds]) -> None:
        self.parts = parts
        self.starts = np.cumsum([0, *map(len, parts)])

    def __len__(self) -> int:
        return int(self.starts[-1])

    def __getitem__(self, inside: slice) -> npt.NDArray[Any]:
        start, stop, _ = inside.indices(len(self))
        first = int(np.searchsorted(self.starts, start, side="right")) - 1
        pieces = [self.parts[0][:0]]
        for part, begin in zip(self.parts[first:], self.starts[first:].tolist(), strict=False):
            if begin < stop:
                pieces.append(part[max(0, start - begin) : max(0, stop - begin)])
        return pieces[1] if len(pieces) == 2 else np.concatenate(pieces)


def dtype(tokenizer: Tokenizer) -> str:
    """Smallest little-endian numpy type that holds all ids."""
    return "<u2" if tokenizer.vocab_size <= 1 << 16 else "<u4"


class Encoded(NamedTuple):
    """Documents of one split in a chunk: their ids as bytes, their number, and bytes of UTF-8."""

    split: Split
    ids: bytes
    documents: int
    size: int


@dataclass(frozen=True)
class Encode:
    """Encodes the documents of a chunk."""

    tokenizer: Tokenizer

    def __call__(self, chunk: list[tuple[Split, str]]) -> list[Encoded]:
        encoded = []
        id_type = dtype(self.tokenizer)
        for split in dict.fromkeys(split for split, _ in chunk):
            texts = [text for of, text in chunk if of == split]
            rows = [np.append(ids, self.tokenizer.sep_id) for ids in self.tokenizer.encode(texts)]
            ids = np.concatenate(rows).astype(id_type).tobytes()
            size = sum(len(text.encode()) for text in texts)
            encoded.append(Encoded(split, ids, len(rows), size))
        return encoded


def pack(
    folder: Path, text: DividedText, tokenizer: Tokenizer, processes: int = 1
) -> dict[Split, dict[str, int]]:
    """Write all splits to a folder; return the numbers of documents, bytes and tokens of each.

    Args:
        folder: empty, or left by a packing of the same text that was interrupted.
        text: to pack.
        tokenizer: of the ids.
        processes: that encode.
    """
    rows = Rows(folder, np.dtype(dtype(tokenizer)).itemsize)
    chunks = chunks_of(text.documents(rows.documents))
    for encoded in in_order(Encode(tokenizer), chunks, processes):
        for part in encoded:
            rows.append(part)
        if rows.unsaved >= _SAVED_BYTES:
            rows.save()
    return rows.finish()


def chunks_of(documents: Iterable[tuple[Split, str]]) -> Iterator[list[tuple[Split, str]]]:
    """Group consecutive documents for one call of the tokenizer."""
    chunk: list[tuple[Split, str]] = []
    size = 0
    for split, text in documents:
        chunk.append((split, text))
        size += len(text)
        if size >= _CHUNK_CHARACTERS or len(chunk) >= _CHUNK_DOCUMENTS:
            yield chunk
            chunk = []
            size = 0
    if chunk:
        yield chunk


class Rows:
    """Files of the splits' rows, which grow at their ends.

    Args:
        folder: of the files.
        width: bytes of an id.
    """

    def __init__(self, folder: Path, width: int) -> None:
        self.folder = folder
        self.width = width
        self.unsaved = 0
        self.open: dict[Split, BinaryIO] = {}
        self.counts: dict[Split, dict[str, int]] = {}
        noted = read_note(folder / PROGRESS, dict[Split, dict[str, int]]) or {}
        if all(counts.keys() == _NONE.keys() for counts in noted.values()):
            self.counts = noted
        self._cut()

    @property
    def documents(self) -> int:
        """Number of documents in all rows."""
        return sum(counts["documents"] for counts in self.counts.values())

    def append(self, part: Encoded) -> None:
        """Write encoded documents to the end of their split's row."""
        counts = self.counts.setdefault(part.split, {**_NONE})
        self._stream(part.split).write(part.ids)
        counts["tokens"] += len(part.ids) // self.width
        counts["documents"] += part.documents
        counts["bytes"] += part.size
        self.unsaved += len(part.ids)

    def save(self) -> None:
        """Note that everything written so far is complete."""
        for stream in self.open.values():
            stream.flush()
            os.fsync(stream.fileno())
        write_atomic(self.folder / PROGRESS, json.dumps(self.counts))
        self.unsaved = 0

    def finish(self) -> dict[Split, dict[str, int]]:
        """Close the files; return the numbers of documents, bytes and tokens by split."""
        for stream in self.open.values():
            stream.close()
        (self.folder / PROGRESS).unlink(missing_ok=True)
        return {split: self.counts[split] for split in SHARES if split in self.counts}

    def _cut(self) -> None:
        """Cut off what was written after the last `save`."""
        width = self.width
        sizes = {self._file(split): n["tokens"] * width for split, n in self.counts.items()}
        if any(not f.exists() or f.stat().st_size < size for f, size in sizes.items()):
            self.counts = {}  # the disk lost what was noted as complete: start over
            sizes = {}
        for file in self.folder.iterdir():
            if file in sizes:
                os.truncate(file, sizes[file])
            elif not (self.counts and file.name == PROGRESS):
                file.unlink()

    def _file(self, split: Split) -> Path:
        return self.folder / f"{split}.bin"

    def _stream(self, split: Split) -> BinaryIO:
        if split not in self.open:
            self.open[split] = self._file(split).open("ab")
        return self.open[split]
