"""Small corpora and vocabularies that the data tests make for themselves."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np

from chimera.data.corpus.base import Data
from chimera.data.encode.packing import PackedTokens
from chimera.data.source.cache import fingerprint_of
from chimera.data.source.splits import Sources, Split, divided
from chimera.data.tokenizer.base import SpecialIds, Tokenizer
from chimera.data.tokenizer.sentence_piece import SentencePiece

_TEXT = "the cat sat on a mat and saw how one old red fox ran over to eat its fish"
WORDS = _TEXT.split()
ROOT = Path(__file__).resolve().parents[2]


def sentences(count: int, seed: int = 0) -> list[str]:
    """Documents of a few dozen words each."""
    rng = np.random.default_rng(seed)
    return [
        " ".join(rng.choice(WORDS, rng.integers(20, 60))).capitalize() + "." for _ in range(count)
    ]


@dataclass(frozen=True, kw_only=True)
class Toy(Data):
    """A corpus of `count` made-up documents."""

    count: int = 200

    def check(self) -> None: ...

    def fingerprint(self) -> str:
        return fingerprint_of("toy", self.count)

    def sources(self) -> Sources:
        return {"train": [sentences(self.count)]}


class Listed:
    """Documents in memory with their splits, which can be packed."""

    def __init__(self, splits: dict[Split, list[str]]) -> None:
        self.splits = splits

    def documents(self, first: int = 0) -> Iterator[tuple[Split, str]]:
        pairs = ((split, text) for split, texts in self.splits.items() for text in texts)
        return islice(pairs, first, None)


def divide(documents: list[str]) -> dict[Split, list[str]]:
    """Documents without splits, divided."""
    return divided({"train": [documents]}, "here")


def splits_of(corpus: Data) -> dict[Split, list[str]]:
    """Documents of a corpus by split."""
    return divided(corpus.sources(), corpus.where)


def texts_of(corpus: Data) -> list[str]:
    """All documents of a corpus, sorted."""
    return sorted(text for texts in splits_of(corpus).values() for text in texts)


def small_piece() -> SentencePiece:
    """Settings of a vocabulary that learns in no time."""
    return SentencePiece(vocab_size=60, byte_fallback=False, num_threads=1)


class Numbers(Tokenizer):
    """Ids 0 to 4 are special, all others are what they are."""

    def __init__(self, vocab_size: int = 100, mask: int | None = 4) -> None:
        super().__init__(SpecialIds(0, 1, 2, 3, mask), vocab_size, "numbers")

    def encode(self, texts):  # type: ignore[no-untyped-def]
        return [np.array([int(word) for word in text.split()], dtype=np.int64) for text in texts]

    def decode(self, ids):  # type: ignore[no-untyped-def]
        return " ".join(map(str, ids))

    def _write(self, folder: Path) -> None: ...

    @classmethod
    def _read(cls, folder, special, sha256):  # type: ignore[no-untyped-def]
        return cls()


def packed(folder: Path, ids: np.ndarray, size: int = 1 << 20) -> PackedTokens:
    """A split of these ids, in files of at most `size` of them."""
    files = []
    for start in range(0, len(ids), size):
        files.append(folder / f"{start}.bin")
        files[-1].write_bytes(ids[start : start + size].astype("<u2").tobytes())
    return PackedTokens(tuple(files), "<u2")


def bert_vocabulary(folder: Path) -> Path:
    """A `vocab.txt` of the words above and some letters."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    letters = [chr(c) for c in range(97, 123)]
    rows = [*special, *WORDS[:4], *letters, *(f"##{c}" for c in letters), ".", "[", "]"]
    (folder / "vocab.txt").write_text("\n".join(dict.fromkeys(rows)) + "\n")
    return folder


def gpt2_vocabulary(folder: Path) -> Path:
    """`vocab.json` with all 256 bytes and one merge, and `merges.txt`."""
    from tokenizers.pre_tokenizers import ByteLevel

    rows = [*sorted(ByteLevel.alphabet()), "th", "<|endoftext|>"]
    (folder / "vocab.json").write_text(json.dumps({row: i for i, row in enumerate(rows)}))
    (folder / "merges.txt").write_text("#version: 0.2\nt h\n")
    return folder
