"""Rules by which documents belong to train, valid or test, and bounds of their size (SPEC D3).

A document belongs to one split; only a text of fewer than twenty documents is cut into more.
`chimera.data.source.division` applies them.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from chimera.errors import UserError

log = logging.getLogger("chimera")

Split = Literal["train", "valid", "test"]
#: Documents of the parts (files) of each present split. Each part can be read again, gives the same
#: documents each time, and can be sent to another process.
Sources = Mapping[Split, Sequence[Iterable[str]]]
#: Share of the text of each split, for a corpus without splits.
SHARES: dict[Split, float] = {"train": 0.90, "valid": 0.05, "test": 0.05}
#: Fewest documents that are divided without cutting them.
FEWEST = 20


class Candidates(NamedTuple):
    """Indices of documents in increasing order, their `digest_of` and characters, each [n]."""

    indices: npt.NDArray[np.int64]
    digests: npt.NDArray[np.uint64]
    lengths: npt.NDArray[np.int64]


def choose(
    below: Callable[[int | None], Candidates], count: int, total: int, shares: dict[Split, float]
) -> dict[Split, npt.NDArray[np.int64]]:
    """Choose the documents of all splits but the largest, which takes all others.

    Each split takes documents in the order of their hashes until it has its share of the text. A
    document that would make it larger than 1.5 shares is skipped; if all are too large, the split
    takes the shortest. Only documents of the lowest hashes are looked at, if those suffice.

    Args:
        below: returns the documents with a digest below a number; of None all.
        count: number of all documents.
        total: characters of all documents.
        shares: share of the text of each split.

    Returns:
        Indices of the documents of each split, in increasing order.

    Raises:
        UserError: fewer documents than splits.
    """
    if count < len(shares):
        raise UserError(
            f"the text has {count} document{'s' * (count != 1)}, too few to divide into"
            f" {', '.join(shares)}; give more text, or blank lines between its documents"
        )
    small = sorted(shares, key=lambda split: shares[split])[:-1]
    sizes = {split: shares[split] * max(1, total) for split in small}
    bound = int((1.05 * sum(shares[split] for split in small) + 0.002) * 2**64)
    return _filled(below(bound), sizes, partial=True) or _filled(below(None), sizes)


def _filled(
    candidates: Candidates, sizes: dict[Split, float], *, partial: bool = False
) -> dict[Split, npt.NDArray[np.int64]]:
    """Fill splits with candidates; empty if candidates that are only a part do not suffice."""
    order = np.argsort(candidates.digests, kind="stable")
    chosen: dict[Split, npt.NDArray[np.int64]] = {}
    for split, share in sizes.items():
        taken = np.zeros(len(order), dtype=bool)
        size = 0
        for place, length in _in_parts(candidates.lengths, order):
            if size >= share:
                break
            if size + length <= 1.5 * share:
                taken[place] = True
                size += length
        if partial and size < share:
            return {}
        if not taken.any():
            taken[np.argmin(candidates.lengths[order])] = True
        chosen[split] = np.sort(candidates.indices[order[taken]])
        order = order[~taken]
    return chosen


def _in_parts(
    lengths: npt.NDArray[np.int64], order: npt.NDArray[np.int64], size: int = 1 << 16
) -> Iterator[tuple[int, int]]:
    """Places and lengths in an order; a list of all would take ten times the memory."""
    for start in range(0, len(order), size):
        yield from enumerate(lengths[order[start : start + size]].tolist(), start)


def pieces(documents: Sequence[str]) -> Sequence[str]:
    """The documents; fewer than twenty are cut into about twenty, each by its share of the text."""
    if len(documents) >= FEWEST:
        return documents
    total = max(1, sum(map(len, documents)))
    return [p for d in documents for p in _cut(d, -(-FEWEST * len(d) // total))]


def digest_of(document: str) -> int:
    """The first 64 bits of a hash of the text."""
    return int.from_bytes(hashlib.sha256(document.encode()).digest()[:8])


def _cut(text: str, parts: int) -> list[str]:
    """Cut a text into about `parts` pieces, at line ends if there are enough, else at blanks."""
    glue = "\n" if text.count("\n") >= parts else " "
    pieces = [""]
    size = len(text) / parts
    for unit in text.split(glue):
        if len(pieces[-1]) >= size:
            pieces.append("")
        pieces[-1] += unit + glue
    return [piece.strip() for piece in pieces if piece.strip()]


def shares_of(present: Collection[Split]) -> dict[Split, float]:
    """Share of the text in each present split, before the missing ones are made."""
    source = _source(present)
    missing = sum(share for split, share in SHARES.items() if split not in present)
    return {split: SHARES[split] + (missing if split == source else 0) for split in present}


def shares_to_divide(
    present: Collection[Split], where: str
) -> tuple[Split, dict[Split, float]] | None:
    """The split that is divided to make the missing ones, and the shares of its text.

    A missing valid or test split takes documents of train by their hashes. A missing train split
    takes the larger part of valid, or of test if valid is missing too.

    Args:
        present: splits that have documents.
        where: source of the text, for messages.

    Returns:
        None if no split is missing.

    Raises:
        UserError: no text.
    """
    if not present:
        raise UserError(f"{where} holds no text")
    missing = [split for split in SHARES if split not in present]
    if not missing:
        return None
    source = _source(present)
    if len(missing) == 2 and source == "train":
        log.info("data: %s has no valid and test: documents are divided 90/5/5", where)
    else:
        log.warning("data: %s has no %s: taken from %s", where, " and ".join(missing), source)
    return source, {s: share for s, share in SHARES.items() if s in missing or s == source}


def _source(present: Collection[Split]) -> Split:
    """The split from which missing ones are made."""
    return next(split for split in SHARES if split in present)


def bounded(documents: Iterable[str], max_bytes: float | None) -> Iterator[str]:
    """Take documents up to `max_bytes` of UTF-8; cut the last one at a blank to fit."""
    remaining = float("inf") if max_bytes is None else max_bytes
    for document in documents:
        size = len(document.encode())
        if size > remaining:
            cut = document.encode()[: int(remaining)].decode(errors="ignore")
            if head := cut.rpartition(" ")[0].rstrip() or cut:
                yield head
            return
        yield document
        remaining -= size
