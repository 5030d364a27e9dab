"""Pack the documents of a split into one row of token ids, d₁ [SEP] d₂ [SEP] …, in a mapped file.

A block is n consecutive tokens of the row. So there is no padding, and only the end of the row is
cut off. An id takes two bytes if the vocabulary has at most 2¹⁶ ids, else four.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from chimera.data.source.splits import Splits
from chimera.data.tokenizer.base import Tokenizer

#: Part of the cache's key; raise it when the files' format changes.
VERSION = 1
_AT_ONCE = 2000  # documents encoded in one call


@dataclass(frozen=True)
class PackedTokens:
    """Packed token ids of one split.

    Args:
        file: raw ids.
        dtype: numpy type of the ids in the file.
    """

    file: Path
    dtype: str

    @cached_property
    def ids(self) -> npt.NDArray[Any]:
        """All ids, memory-mapped: read from disk on access."""
        return np.memmap(self.file, dtype=self.dtype, mode="r")

    def __len__(self) -> int:
        return self.file.stat().st_size // np.dtype(self.dtype).itemsize

    def __getstate__(self) -> dict[str, Any]:
        # Worker processes map the file themselves; the ids are not sent to them.
        return {"file": self.file, "dtype": self.dtype}

    def blocks(self, length: int) -> int:
        """Number of blocks; a split shorter than one block has a single short block."""
        return max(1, len(self) // length)

    def block(self, index: int, length: int) -> npt.NDArray[np.int64]:
        """The index-th block [length]."""
        return self.ids[index * length : (index + 1) * length].astype(np.int64)


def pack(folder: Path, splits: Splits, tokenizer: Tokenizer) -> dict[str, dict[str, int]]:
    """Write all splits to a folder; return the numbers of documents, bytes and tokens of each."""
    id_type = dtype(tokenizer)
    return {
        split: _pack_one(folder / f"{split}.bin", documents, tokenizer, id_type)
        for split, documents in splits.items()
    }


def dtype(tokenizer: Tokenizer) -> str:
    """Smallest little-endian numpy type that holds all ids."""
    return "<u2" if tokenizer.vocab_size <= 1 << 16 else "<u4"


def _pack_one(
    file: Path, documents: Sequence[str], tokenizer: Tokenizer, id_type: str
) -> dict[str, int]:
    tokens = 0
    with file.open("wb") as stream:
        for start in range(0, len(documents), _AT_ONCE):
            for ids in tokenizer.encode(documents[start : start + _AT_ONCE]):
                row = np.append(ids, tokenizer.sep_id).astype(id_type)
                stream.write(row.tobytes())
                tokens += len(row)
    size = sum(len(document.encode()) for document in documents)
    return {"documents": len(documents), "bytes": size, "tokens": tokens}
