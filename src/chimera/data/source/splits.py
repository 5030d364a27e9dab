"""Divide documents into train, valid and test, and limit their size (SPEC D3).

A document belongs to one split; only a text of fewer than twenty documents is cut into more. The
text may be larger than memory: it is read once, part by part, and of each document its hash and
size are written to `<split>-<part>.notes`. From these every document gets a byte in
`<split>.assigned`: the number of its split, or `DROPPED`. The notes of a part are whole or absent,
so an interrupted division reads only the missing parts again.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice, zip_longest
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from chimera.data.source.workers import FOR_ONE_PROCESS, in_order
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
#: Part of the cache's key; raise it when the files' format changes.
VERSION = 1
DROPPED = 255
_SPLITS: tuple[Split, ...] = tuple(SHARES)
_NOTE = np.dtype([("digest", "<u8"), ("characters", "<u4"), ("letters", "<u4"), ("bytes", "<u4")])
_AT_ONCE = 1 << 16  # notes in memory
_WRITTEN_AT_ONCE = 1 << 10
_BUCKET = 1 << 21  # digests that are compared at once to find equal documents


def divide_sources(
    folder: Path, sources: Sources, where: str, *, deduplicate: bool = False, processes: int = 1
) -> dict[str, Any]:
    """Write the split of each document to a folder.

    Args:
        folder: may hold notes of an interrupted call.
        sources: parts of the present splits.
        where: source of the text, for messages.
        deduplicate: drop all but one of equal documents.
        processes: that read parts.

    Returns:
        Facts for `DividedText`.

    Raises:
        UserError: no text, a split of the sources without text, or too little to divide.
    """
    work = [(folder / f"{s}-{i:06d}.notes", p) for s in sources for i, p in enumerate(sources[s])]
    _write_all([(file, part) for file, part in work if not file.exists()], processes)
    notes = {s: Notes.of(folder, f"{s}-*.notes") for s in _SPLITS if s in sources}
    present = [split for split, note in notes.items() if len(note)]
    empty = [split for split in notes if split not in present]
    if empty and present:
        raise UserError(
            f"{where} has a {empty[0]} split without text; give it text or leave it out"
        )
    divided, shares = shares_to_divide(present, where) or (None, {})
    cut = divided if divided and len(notes[divided]) < FEWEST else None
    if cut:
        write_notes((folder / f"cut-{cut}.notes", pieces([*chain.from_iterable(sources[cut])])))
        notes[cut] = Notes.of(folder, f"cut-{cut}.notes")
    dropped = duplicates(notes) if deduplicate else {}
    if not all(len(notes[split]) > len(dropped.get(split, ())) for split in present):
        raise UserError(
            "data.deduplicate=true leaves a split empty, as its documents are in others; give other"
            " text or data.deduplicate=false"
        )
    facts: dict[str, Any] = {
        "parts": {split: notes[split].counts for split in present},
        "cut": cut,
        "documents": sum(len(notes[split]) for split in present),
        "dropped": sum(len(indices) for indices in dropped.values()),
        "bytes": 0,
        "letters": 0,
    }
    for split in present:
        into = shares if split == divided else {split: 1.0}
        assigned = _assign(notes[split], into, dropped.get(split))
        with (folder / f"{split}.assigned").open("wb") as stream:
            stream.write(assigned.tobytes())  # not `tofile`, which may lose an error at its end
        for start, chunk in notes[split].chunks():
            inside = assigned[start : start + len(chunk)]
            facts["bytes"] += int(chunk["bytes"][inside != DROPPED].sum())
            facts["letters"] += int(chunk["letters"][inside == 0].sum())
    for file in (*folder.glob("*.notes"), *folder.glob("*.writing")):
        file.unlink()
    return facts


def _write_all(work: list[tuple[Path, Iterable[str]]], processes: int) -> None:
    """Write notes; processes are started once this one has read `FOR_ONE_PROCESS` bytes."""
    size = 0
    for done, each in enumerate(work, 1):
        size += write_notes(each)
        if size > FOR_ONE_PROCESS and done < len(work):
            for _ in in_order(write_notes, work[done:], min(processes, len(work) - done)):
                pass
            return


def write_notes(work: tuple[Path, Iterable[str]]) -> int:
    """Write the notes of a part; return its bytes."""
    file, documents = work
    temporary = file.with_suffix(".writing")
    size = 0
    remaining = iter(documents)
    with temporary.open("wb") as stream:
        while notes := [_note(document) for document in islice(remaining, _WRITTEN_AT_ONCE)]:
            rows = np.array(notes, dtype=_NOTE)
            stream.write(rows.tobytes())
            size += int(rows["bytes"].sum())
    os.replace(temporary, file)
    return size


def _note(document: str) -> tuple[int, int, int, int]:
    characters = len(document)
    letters = characters - document.count("\n")
    return digest_of(document), characters, letters, len(document.encode())


@dataclass(frozen=True)
class Notes:
    """Notes of all documents of a split's parts, in files."""

    files: tuple[Path, ...]

    @classmethod
    def of(cls, folder: Path, names: str) -> Notes:
        """The notes in a folder, in the order of their names."""
        return cls(tuple(sorted(folder.glob(names))))

    @cached_property
    def counts(self) -> list[int]:
        """Documents of each part."""
        return [file.stat().st_size // _NOTE.itemsize for file in self.files]

    def __len__(self) -> int:
        return sum(self.counts)

    def chunks(self) -> Iterator[tuple[int, npt.NDArray[Any]]]:
        """Index of the first note and the notes, a bounded number at once."""
        first = 0
        for file, count in zip(self.files, self.counts, strict=True):
            for start in range(0, count, _AT_ONCE):
                offset = start * _NOTE.itemsize
                yield first + start, np.fromfile(file, _NOTE, count=_AT_ONCE, offset=offset)
            first += count


def duplicates(notes: Mapping[Split, Notes]) -> dict[Split, npt.NDArray[np.int64]]:
    """Indices of the documents that are equal to one kept before, by 64 bits of their hashes.

    Args:
        notes: of each split. A document of test is kept before one of valid and of train.
    """
    found: dict[Split, list[npt.NDArray[np.int64]]] = {split: [] for split in notes}
    bits = max(0, (sum(map(len, notes.values())) // _BUCKET).bit_length())
    for bucket in range(1 << bits):
        seen = np.empty(0, dtype=np.uint64)
        for split in reversed([split for split in SHARES if split in notes]):
            digests = [np.empty(0, np.uint64)]
            indices = [np.empty(0, np.int64)]
            for start, chunk in notes[split].chunks():
                head = chunk["digest"] >> np.uint64(64 - bits) if bits else np.zeros(len(chunk))
                inside = np.flatnonzero(head == bucket)
                digests.append(chunk["digest"][inside])
                indices.append(inside + start)
            unique, first = np.unique(np.concatenate(digests), return_index=True)
            again = np.ones(sum(map(len, digests)), dtype=bool)
            again[first[~np.isin(unique, seen)]] = False
            found[split].append(np.concatenate(indices)[again])
            seen = np.union1d(seen, unique)
    return {split: np.sort(np.concatenate(parts)) for split, parts in found.items()}


def _assign(
    notes: Notes, shares: dict[Split, float], dropped: npt.NDArray[np.int64] | None
) -> npt.NDArray[np.uint8]:
    """Number of the split of each document [n]."""
    largest = max(shares, key=lambda split: shares[split])
    assigned = np.full(len(notes), _SPLITS.index(largest), dtype=np.uint8)
    if dropped is not None:
        assigned[dropped] = DROPPED
    if len(shares) == 1:
        return assigned

    def below(bound: int | None) -> Candidates:
        found: list[tuple[Any, Any, Any]] = []
        for start, chunk in notes.chunks():
            kept = assigned[start : start + len(chunk)] != DROPPED
            if bound is not None:
                kept &= chunk["digest"] < np.uint64(bound)
            inside = np.flatnonzero(kept)
            rows = chunk[inside]
            found.append((inside + start, rows["digest"], rows["characters"].astype(np.int64)))
        return Candidates(*(np.concatenate(column) for column in zip(*found, strict=True)))

    total = 0
    for start, chunk in notes.chunks():
        total += int(chunk["characters"][assigned[start : start + len(chunk)] != DROPPED].sum())
    count = int((assigned != DROPPED).sum())
    for smaller, indices in choose(below, count, total, shares).items():
        assigned[indices] = _SPLITS.index(smaller)
    return assigned


def is_whole(folder: Path, facts: Mapping[str, Any]) -> bool:
    """Whether a folder has the split of each document that was counted."""
    return all(
        (folder / f"{split}.assigned").stat().st_size == sum(counts)
        for split, counts in facts["parts"].items()
    )


@dataclass(frozen=True)
class DividedText:
    """Documents with their splits, read from the sources each time.

    Args:
        folder: that `divide_sources` wrote to.
        facts: that it returned.
        sources: the same as there.
    """

    folder: Path
    facts: dict[str, Any]
    sources: Sources

    def documents(self, first: int = 0) -> Iterator[tuple[Split, str]]:
        """Split and text of each document that was not dropped, always in the same order.

        Args:
            first: number of these documents to leave out. Whole parts among them are not read.

        Raises:
            UserError: the text has changed since it was divided.
        """
        for split, counts in self.facts["parts"].items():
            start = 0
            file = self.folder / f"{split}.assigned"
            for count, part in zip(counts, self._parts(split), strict=True):
                assigned = np.fromfile(file, np.uint8, count=count, offset=start)
                kept = int((assigned != DROPPED).sum())
                if first < kept:
                    yield from islice(_with_splits(assigned, part), first, None)
                first = max(0, first - kept)
                start = start + count

    def _parts(self, split: Split) -> Sequence[Iterable[str]]:
        parts = self.sources[split]
        return [pieces([*chain.from_iterable(parts)])] if split == self.facts["cut"] else parts


def _with_splits(
    assigned: npt.NDArray[np.uint8], documents: Iterable[str]
) -> Iterator[tuple[Split, str]]:
    for number, document in zip_longest(assigned, documents):
        if number is None or document is None:
            raise UserError("the text changed while it was prepared; start again")
        if number != DROPPED:
            yield _SPLITS[number], document


@dataclass(frozen=True)
class TrainText:
    """Documents of train of several texts, one text after the other; each time read anew."""

    texts: Sequence[DividedText]

    @property
    def letters(self) -> int:
        """Characters of all lines."""
        return sum(int(text.facts["letters"]) for text in self.texts)

    def __iter__(self) -> Iterator[str]:
        pairs = chain.from_iterable(text.documents() for text in self.texts)
        return (document for split, document in pairs if split == "train")


def divided(sources: Sources, where: str) -> dict[Split, list[str]]:
    """Documents of each split in memory: for small text.

    Args:
        sources, where: as of `divide_sources`.
    """
    found: dict[Split, list[str]] = {split: [] for split in SHARES}
    with TemporaryDirectory() as folder:
        facts = divide_sources(Path(folder), sources, where)
        for split, document in DividedText(Path(folder), facts, sources).documents():
            found[split].append(document)
    return found


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
    return [piece for piece in map(trimmed, pieces) if piece]


def trimmed(text: str) -> str:
    """Text without blank lines around it and blanks at its end; its indentation stays."""
    indentation = len(text) - len(text.lstrip())
    return text[text.rfind("\n", 0, indentation) + 1 :].rstrip()


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
