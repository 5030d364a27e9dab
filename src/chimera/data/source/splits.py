"""Divide documents into train, valid and test, and limit their size (SPEC D3).

A document belongs to one split; only a text of fewer than twenty documents is cut into more.
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
#: Share of the text of each split, for a corpus without splits.
SHARES: dict[Split, float] = {"train": 0.90, "valid": 0.05, "test": 0.05}
#: Fewest documents that are divided without cutting them.
_FEWEST = 20


def divide(documents: Sequence[str], shares: dict[Split, float] = SHARES) -> Splits:
    """Divide documents among splits by the hash of their text.

    Each split takes documents in the order of their hashes until it has its share of the text. A
    document that would make it larger than 1.5 shares is skipped; if all are too large, the split
    takes the shortest. Inside a split documents keep their order. Fewer than twenty documents are
    first cut into about twenty.

    Args:
        documents: texts.
        shares: share of the text of each split; they add up to 1 or less.

    Raises:
        UserError: fewer pieces of text than splits.
    """
    total = max(1, sum(map(len, documents)))
    if len(documents) < _FEWEST:
        documents = [p for d in documents for p in _cut(d, -(-_FEWEST * len(d) // total))]
    if len(documents) < len(shares):
        raise UserError(f"the text is too short to divide into {', '.join(shares)}; give more")
    unassigned = sorted(range(len(documents)), key=lambda i: _digest(documents[i]))
    chosen: dict[Split, list[int]] = {}
    # Small splits choose first; the largest takes all other documents.
    *small, largest = sorted(shares, key=lambda split: shares[split])
    for split in small:
        share, size = shares[split] * total, 0
        indices: list[int] = []
        for i in unassigned:
            if size < share and size + len(documents[i]) <= 1.5 * share:
                indices.append(i)
                size += len(documents[i])
        chosen[split] = indices or [min(unassigned, key=lambda i: len(documents[i]))]
        assigned = set(chosen[split])
        unassigned = [i for i in unassigned if i not in assigned]
    chosen[largest] = unassigned
    return {split: [documents[i] for i in sorted(chosen[split])] for split in shares}


def _cut(text: str, parts: int) -> list[str]:
    """Cut a text into about `parts` pieces, at line ends if there are enough, else at blanks."""
    glue = "\n" if text.count("\n") >= parts else " "
    pieces, size = [""], len(text) / parts
    for unit in text.split(glue):
        if len(pieces[-1]) >= size:
            pieces.append("")
        pieces[-1] += unit + glue
    return [piece.strip() for piece in pieces if piece.strip()]


def shares_of(present: Collection[Split]) -> dict[Split, float]:
    """Share of the text in each present split, before `complete` makes the missing ones."""
    source = _source(present)
    missing = sum(share for split, share in SHARES.items() if split not in present)
    return {split: SHARES[split] + (missing if split == source else 0) for split in present}


def complete(splits: dict[Split, list[str]], where: str) -> Splits:
    """Make the missing splits from the present ones.

    A missing valid or test split takes documents of train by their hashes. A missing train split
    takes the larger part of valid, or of test if valid is missing too.

    Args:
        splits: documents of the present splits; an empty list counts as missing.
        where: source of the text, for messages.

    Raises:
        UserError: no text, or too little to divide.
    """
    splits = {split: documents for split, documents in splits.items() if documents}
    if not splits:
        raise UserError(f"{where} holds no text")
    missing = [split for split in SHARES if split not in splits]
    if missing:
        source = _source(splits)
        if len(missing) == 2 and source == "train":
            log.info("data: %s has no valid and test: documents are divided 90/5/5", where)
        else:
            log.warning("data: %s has no %s: taken from %s", where, " and ".join(missing), source)
        shares = {s: share for s, share in SHARES.items() if s in missing or s == source}
        splits |= divide(splits[source], shares)
    return {split: splits[split] for split in SHARES}


def _source(present: Collection[Split]) -> Split:
    """The split from which missing ones are made."""
    return next(split for split in SHARES if split in present)


def bounded(documents: Iterable[str], max_bytes: float | None) -> list[str]:
    """Take documents up to `max_bytes` of UTF-8; cut the last one at a blank to fit."""
    kept: list[str] = []
    remaining = float("inf") if max_bytes is None else max_bytes
    for document in documents:
        size = len(document.encode())
        if size > remaining:
            cut = document.encode()[: int(remaining)].decode(errors="ignore")
            head = cut.rpartition(" ")[0].rstrip() or cut
            return [*kept, head] if head else kept
        kept.append(document)
        remaining -= size
    return kept


def _digest(document: str) -> bytes:
    return hashlib.sha256(document.encode()).digest()
