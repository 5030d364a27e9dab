"""Documents as one long row of token ids per split: d₁ [SEP] d₂ [SEP] …, in a file, memory-mapped.

A block of n tokens is any n in a row, so nothing is padded and nothing cut off but the tail of the
row. Ids take two bytes where the vocabulary fits, else four.
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

#: Raised whenever the files change.
VERSION = 1
_AT_ONCE = 2000  # documents encoded in one call


@dataclass(frozen=True)
class PackedTokens:
    """The tokens of one split.

    Args:
        file: raw ids.
        dtype: of the ids in it.
    """

    file: Path
    dtype: str

    @cached_property
    def ids(self) -> npt.NDArray[Any]:
        """All ids, read from disk as they are touched."""
        return np.memmap(self.file, dtype=self.dtype, mode="r")

    def __len__(self) -> int:
        return self.file.stat().st_size // np.dtype(self.dtype).itemsize

    def __getstate__(self) -> dict[str, Any]:
        # A worker process maps the file itself rather than being sent its contents.
        return {"file": self.file, "dtype": self.dtype}

    def blocks(self, length: int) -> int:
        """How many blocks there are; a split shorter than one block makes a single short one."""
        return max(1, len(self) // length)

    def block(self, index: int, length: int) -> npt.NDArray[np.int64]:
        """The index-th block of `length` tokens."""
        return self.ids[index * length : (index + 1) * length].astype(np.int64)


def pack(folder: Path, splits: Splits, tokenizer: Tokenizer) -> dict[str, dict[str, int]]:
    """Write every split into the folder; returns documents, bytes of text and tokens of each."""
    kept = dtype(tokenizer)
    return {
        split: _pack_one(folder / f"{split}.bin", documents, tokenizer, kept)
        for split, documents in splits.items()
    }


def dtype(tokenizer: Tokenizer) -> str:
    """The smallest that holds every id, little-endian."""
    return "<u2" if tokenizer.vocab_size <= 1 << 16 else "<u4"


def _pack_one(
    file: Path, documents: Sequence[str], tokenizer: Tokenizer, kept: str
) -> dict[str, int]:
    tokens = 0
    with file.open("wb") as stream:
        for start in range(0, len(documents), _AT_ONCE):
            for ids in tokenizer.encode(documents[start : start + _AT_ONCE]):
                row = np.append(ids, tokenizer.sep_id).astype(kept)
                stream.write(row.tobytes())
                tokens += len(row)
    size = sum(len(document.encode()) for document in documents)
    return {"documents": len(documents), "bytes": size, "tokens": tokens}
