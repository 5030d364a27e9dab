"""Tokenizer of numbers: token id i is the text «i». For the synthetic data sets.

Id 0, the blank, is padding and every other special token.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np

from chimera.data.source.cache import fingerprint_of
from chimera.data.tokenizer.base import Ids, SpecialIds, Tokenizer, TokenizerSettings
from chimera.types import PositiveInt

_FILE = "symbols.json"
_SPECIAL = SpecialIds(pad=0, unk=0, cls=0, sep=0, mask=0)


@dataclass(frozen=True, kw_only=True)
class Symbols(TokenizerSettings):
    """Numbers below a limit.

    Args:
        size: number of symbols; that of a synthetic data set is its `vocabulary`.
    """

    size: PositiveInt = 128

    def fingerprint(self, corpus: str) -> str:
        """Hash of the size; the corpus does not matter."""
        return fingerprint_of("symbols", 1, self.size)

    def build(self, documents: Iterable[str]) -> Tokenizer:
        """See `TokenizerSettings.build`."""
        return SymbolTokenizer(self.size)


class SymbolTokenizer(Tokenizer):
    """Encode numbers below `size`, separated by blanks; anything else is id 0."""

    def __init__(self, size: int, special: SpecialIds = _SPECIAL) -> None:
        super().__init__(special, size, fingerprint_of("symbols", 1, size))

    def encode(self, texts: Sequence[str]) -> list[Ids]:
        """See `Tokenizer.encode`."""
        return [np.array([self._id(word) for word in t.split()], dtype=np.int64) for t in texts]

    def decode(self, ids: Iterable[int]) -> str:
        """See `Tokenizer.decode`; blanks are left out."""
        return " ".join(str(i) for i in map(int, ids) if i)

    def _id(self, word: str) -> int:
        number = int(word) if word.isascii() and word.isdigit() else 0
        return number if number < self.vocab_size else 0

    def _write(self, folder: Path) -> None:
        (folder / _FILE).write_text(json.dumps({"size": self.vocab_size}) + "\n")

    @classmethod
    def _read(cls, folder: Path, special: SpecialIds, sha256: str) -> Self:
        return cls(int(json.loads((folder / _FILE).read_text())["size"]), special)
