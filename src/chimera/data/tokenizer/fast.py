"""Adapter for tokenizers of the Hugging Face library `tokenizers`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Self

import numpy as np

from chimera.data.tokenizer.base import Ids, SpecialIds, Tokenizer
from chimera.errors import UserError

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Fast

#: The library's `tokenizer.json`; that name is taken by `DESCRIPTION`.
_FILE = "huggingface.json"


class FastTokenizer(Tokenizer):
    """Wraps a `tokenizers.Tokenizer`."""

    def __init__(self, fast: Fast, special: SpecialIds, sha256: str) -> None:
        super().__init__(special, max(fast.get_vocab().values()) + 1, sha256)
        fast.encode_special_tokens = True  # encode their names as ordinary text
        self.fast = fast

    def encode(self, texts: Sequence[str]) -> list[Ids]:
        encoded = self.fast.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.array(encoding.ids, dtype=np.int64) for encoding in encoded]

    def decode(self, ids: Iterable[int]) -> str:
        return str(self.fast.decode([int(i) for i in ids]))

    def _write(self, folder: Path) -> None:
        self.fast.save(str(folder / _FILE))

    @classmethod
    def _read(cls, folder: Path, special: SpecialIds, sha256: str) -> Self:
        from tokenizers import Tokenizer as Fast

        try:
            return cls(Fast.from_buffer((folder / _FILE).read_bytes()), special, sha256)
        except ValueError as error:  # of the library
            why = " ".join(str(error).split())[:200]
            raise UserError(f"{folder / _FILE} is no tokenizer: {why}") from error
