"""What a corpus is, and how its documents are divided and bounded (SPEC D3).

A corpus is a frozen dataclass: its fields are the keys of `conf/data/<name>.yaml`, those of `Data`
among them. Documents are texts; unless there are very few, none is cut between splits.
"""

# Without `from __future__ import annotations`: dataclasses that inherit these fields would look
# the names of their types up in modules of their own.

import hashlib
import logging
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from chimera.errors import UserError
from chimera.types import NonNegativeInt, PositiveInt

log = logging.getLogger("chimera")

Split = Literal["train", "valid", "test"]
#: Documents of each split, never empty.
Splits = dict[Split, list[str]]
#: Shares of the text where a corpus does not come divided.
SHARES: dict[Split, float] = {"train": 0.90, "valid": 0.05, "test": 0.05}
_FEWEST = 20  # documents that can be divided so


@dataclass(frozen=True, kw_only=True)
class Data:
    """What every choice of `data=` has.

    Args:
        batch_size: sequences per micro-batch.
        seq_len: tokens per sequence.
        num_workers: processes that make batches; 0 makes them in the training process.
        cache_dir: where downloads, tokenizers and token ids are kept between runs.
        max_bytes: about how much text is used, over all splits; None uses all.
    """

    batch_size: PositiveInt = 16
    seq_len: PositiveInt = 128
    num_workers: NonNegativeInt = 0
    cache_dir: str = "~/.cache/chimera"
    max_bytes: PositiveInt | None = None

    @property
    def cache(self) -> Path:
        """`cache_dir` with the home directory put in."""
        return Path(self.cache_dir).expanduser()


class Corpus(Protocol):
    """Text in documents."""

    @property
    def cache(self) -> Path: ...

    def check(self) -> None:
        """Find out in milliseconds whether the text is there.

        Raises:
            UserError: what is missing and what to do.
        """

    def fingerprint(self) -> str:
        """Changes whenever `splits` would; much cheaper than it."""

    def splits(self) -> Splits:
        """The documents of each split, always the same ones in the same order."""


def divide(documents: Sequence[str], shares: dict[Split, float] = SHARES) -> Splits:
    """Divide documents by the hash of their text.

    Documents are dealt in the order of their hashes until a split has its share of the text. One
    that would overfill a small split is passed over; if all would, it gets the shortest. Inside a
    split they keep their order. If there are fewer than twenty, they are cut into about twenty.

    Raises:
        UserError: hardly any text.
    """
    total = max(1, sum(map(len, documents)))
    if len(documents) < _FEWEST:
        documents = [p for d in documents for p in _cut(d, -(-_FEWEST * len(d) // total))]
    if len(documents) < len(shares):
        raise UserError(f"the text is too short to divide into {', '.join(shares)}; give more")
    left = sorted(range(len(documents)), key=lambda i: _digest(documents[i]))
    chosen: dict[Split, list[int]] = {}
    # The smallest share is dealt first; the largest takes what is left.
    *small, largest = sorted(shares, key=lambda split: shares[split])
    for split in small:
        wanted, size = shares[split] * total, 0
        taken: list[int] = []
        for i in left:
            if size < wanted and size + len(documents[i]) <= 1.5 * wanted:
                taken.append(i)
                size += len(documents[i])
        chosen[split] = taken or [min(left, key=lambda i: len(documents[i]))]
        gone = set(chosen[split])
        left = [i for i in left if i not in gone]
    chosen[largest] = left
    return {split: [documents[i] for i in sorted(chosen[split])] for split in shares}


def _cut(text: str, parts: int) -> list[str]:
    """The text in about `parts` pieces, cut at line ends if there are enough, else at blanks."""
    glue = "\n" if text.count("\n") >= parts else " "
    pieces, size = [""], len(text) / parts
    for unit in text.split(glue):
        if len(pieces[-1]) >= size:
            pieces.append("")
        pieces[-1] += unit + glue
    return [piece.strip() for piece in pieces if piece.strip()]


def shares_of(found: Collection[Split]) -> dict[Split, float]:
    """The share of the text that each split holds before `complete` fills in the missing ones."""
    source = _source(found)
    missing = sum(share for split, share in SHARES.items() if split not in found)
    return {split: SHARES[split] + (missing if split == source else 0) for split in found}


def complete(found: dict[Split, list[str]], where: str) -> Splits:
    """Fill in the splits that a source does not come with.

    A missing valid or test split is taken out of train by the documents' hashes. Without train, it
    is the larger part of valid (or of test, if that is all there is).

    Raises:
        UserError: no text at all in `where`, or hardly any.
    """
    found = {split: documents for split, documents in found.items() if documents}
    if not found:
        raise UserError(f"{where} holds no text")
    missing = [split for split in SHARES if split not in found]
    if missing:
        source = _source(found)
        if len(missing) == 2 and source == "train":
            log.info("data: %s comes undivided: 90/5/5 by document", where)
        else:
            log.warning("data: %s has no %s: taken from %s", where, " and ".join(missing), source)
        shares = {s: share for s, share in SHARES.items() if s in missing or s == source}
        found |= divide(found[source], shares)
    return {split: found[split] for split in SHARES}


def _source(found: Collection[Split]) -> Split:
    """The split that missing ones are taken out of."""
    return next(split for split in SHARES if split in found)


def bounded(documents: Iterable[str], max_bytes: float | None) -> list[str]:
    """The first documents up to `max_bytes` of UTF-8; the last is cut to fit, at a blank."""
    taken: list[str] = []
    left = float("inf") if max_bytes is None else max_bytes
    for document in documents:
        size = len(document.encode())
        if size > left:
            cut = document.encode()[: int(left)].decode(errors="ignore")
            head = cut.rpartition(" ")[0].rstrip() or cut
            return [*taken, head] if head else taken
        taken.append(document)
        left -= size
    return taken


def fingerprint_of(*parts: object) -> str:
    """Hexadecimal hash of a sequence of plain values."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def file_fingerprint(file: Path, whole: int = 1 << 28) -> str:
    """Hash of a file's contents; above `whole` bytes of its ends, size and time of change."""
    with file.open("rb") as stream:
        status = file.stat()
        if status.st_size <= whole:
            return hashlib.file_digest(stream, "sha256").hexdigest()
        head = stream.read(1 << 16)
        stream.seek(-(1 << 16), 2)
        return fingerprint_of(head, stream.read(), status.st_size, status.st_mtime_ns)


def _digest(document: str) -> bytes:
    return hashlib.sha256(document.encode()).digest()
