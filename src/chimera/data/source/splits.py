"""Divide documents into train, valid and test, and bound their number (SPEC D3).

Unless there are very few documents, none is cut between splits.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Collection, Iterable, Sequence
from typing import Literal

from chimera.errors import UserError

log = logging.getLogger("chimera")

Split = Literal["train", "valid", "test"]
#: Documents of each split, never empty.
Splits = dict[Split, list[str]]
#: Shares of the text where a corpus does not come divided.
SHARES: dict[Split, float] = {"train": 0.90, "valid": 0.05, "test": 0.05}
_FEWEST = 20  # documents that can be divided so


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


def shares_of(present: Collection[Split]) -> dict[Split, float]:
    """The share of the text that each split holds before `complete` fills in the missing ones."""
    source = _source(present)
    missing = sum(share for split, share in SHARES.items() if split not in present)
    return {split: SHARES[split] + (missing if split == source else 0) for split in present}


def complete(splits: dict[Split, list[str]], where: str) -> Splits:
    """Fill in the splits that a source does not come with.

    A missing valid or test split is taken out of train by the documents' hashes. Without train, it
    is the larger part of valid (or of test, if that is all there is).

    Raises:
        UserError: no text at all in `where`, or hardly any.
    """
    splits = {split: documents for split, documents in splits.items() if documents}
    if not splits:
        raise UserError(f"{where} holds no text")
    missing = [split for split in SHARES if split not in splits]
    if missing:
        source = _source(splits)
        if len(missing) == 2 and source == "train":
            log.info("data: %s comes undivided: 90/5/5 by document", where)
        else:
            log.warning("data: %s has no %s: taken from %s", where, " and ".join(missing), source)
        shares = {s: share for s, share in SHARES.items() if s in missing or s == source}
        splits |= divide(splits[source], shares)
    return {split: splits[split] for split in SHARES}


def _source(present: Collection[Split]) -> Split:
    """The split that missing ones are taken out of."""
    return next(split for split in SHARES if split in present)


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


def _digest(document: str) -> bytes:
    return hashlib.sha256(document.encode()).digest()
