"""Divide text that may be larger than memory: a note of each document, then the split of each.

The text is read once, part by part, and of each document its hash and size are written to
`<split>-<part>.notes`. From these every document gets a byte in `<split>.assigned`: the number of
its split, or `DROPPED`. The division is that of `chimera.data.source.splits`. The notes of a part
are whole or absent, so an interrupted division reads only the missing parts again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice, zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from chimera.data.corpus.base import Sources
from chimera.data.encode.document_index import Equal, Notes, write_all, write_notes
from chimera.data.source.splits import (
    FEWEST,
    SHARES,
    Candidates,
    Split,
    Splits,
    choose,
    pieces,
    shares_to_divide,
)
from chimera.data.tokenizer.base import letters_of
from chimera.errors import UserError

#: Part of the cache's key; raise it when the files' format changes.
VERSION = 1
DROPPED = 255
_SPLITS: tuple[Split, ...] = tuple(SHARES)


def divide_sources(
    folder: Path, sources: Sources, where: str, *, deduplicate: bool, processes: int
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
        UserError: no text, or too little to divide.
    """
    work = [(folder / f"{s}-{i:06d}.notes", p) for s in sources for i, p in enumerate(sources[s])]
    write_all([(file, part) for file, part in work if not file.exists()], processes)
    notes = {split: Notes.of(folder, split) for split in _SPLITS if split in sources}
    present = [split for split, note in notes.items() if len(note)]
    divided = shares_to_divide(present, where)
    cut: Split | None = None
    if divided and len(notes[divided[0]]) < FEWEST:
        cut = divided[0]
        write_notes((folder / f"cut-{cut}.notes", pieces([*chain.from_iterable(sources[cut])])))
        notes[cut] = Notes((folder / f"cut-{cut}.notes",))
    dropped = Equal(notes).dropped() if deduplicate else {}
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
        shares = divided[1] if divided and divided[0] == split else {split: 1.0}
        assigned = _assign(notes[split], split, shares, dropped.get(split))
        assigned.tofile(folder / f"{split}.assigned")
        for start, chunk in notes[split].chunks():
            inside = assigned[start : start + len(chunk)]
            facts["bytes"] += int(chunk["bytes"][inside != DROPPED].sum())
            facts["letters"] += int(chunk["letters"][inside == 0].sum())
    for file in (*folder.glob("*.notes"), *folder.glob("*.writing")):
        file.unlink()
    return facts


def _assign(
    notes: Notes,
    split: Split,
    shares: dict[Split, float],
    dropped: npt.NDArray[np.int64] | None,
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
        kept = assigned[start : start + len(chunk)] != DROPPED
        total += int(chunk["characters"][kept].sum())
    count = int((assigned != DROPPED).sum())
    for smaller, indices in choose(below, count, total, shares).items():
        assigned[indices] = _SPLITS.index(smaller)
    return assigned


@dataclass(frozen=True)
class ListedText:
    """Documents in memory with their splits."""

    splits: Splits

    @cached_property
    def facts(self) -> dict[str, int]:
        """Numbers of documents and of bytes of UTF-8."""
        sizes = [len(document.encode()) for split in self.splits.values() for document in split]
        return {"documents": len(sizes), "bytes": sum(sizes)}

    @property
    def train(self) -> Iterable[str]:
        """Documents of train."""
        return self.splits["train"]

    def documents(self, first: int = 0) -> Iterator[tuple[Split, str]]:
        """See `packing.Documents`."""
        pairs = ((split, text) for split, texts in self.splits.items() for text in texts)
        return islice(pairs, first, None)


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

    @property
    def train(self) -> TrainText:
        """Documents of train."""
        return TrainText(self)

    def documents(self, first: int = 0) -> Iterator[tuple[Split, str]]:
        """Split and text of each document that was not dropped.

        Args:
            first: number of these documents to leave out. Whole parts among them are not read.

        Raises:
            UserError: the text has changed since it was divided.
        """
        for split, counts in self.facts["parts"].items():
            start = 0
            for count, part in zip(counts, self._parts(split), strict=True):
                assigned = self._assigned(split, start, count)
                kept = int((assigned != DROPPED).sum())
                if first < kept:
                    yield from islice(_with_splits(assigned, part), first, None)
                first = max(0, first - kept)
                start = start + count

    def _parts(self, split: Split) -> Sequence[Iterable[str]]:
        parts = self.sources[split]
        return [pieces([*chain.from_iterable(parts)])] if split == self.facts["cut"] else parts

    def _assigned(self, split: Split, start: int, count: int) -> npt.NDArray[np.uint8]:
        return np.fromfile(self.folder / f"{split}.assigned", np.uint8, count=count, offset=start)


@dataclass(frozen=True)
class TrainText:
    """Documents of train, each time read anew; `letters` are the characters of all their lines."""

    text: DividedText

    @property
    def letters(self) -> int:
        return int(self.text.facts["letters"])

    def __iter__(self) -> Iterator[str]:
        return (document for split, document in self.text.documents() if split == "train")


def _with_splits(
    assigned: npt.NDArray[np.uint8], documents: Iterable[str]
) -> Iterator[tuple[Split, str]]:
    for number, document in zip_longest(assigned, documents):
        if number is None or document is None:
            raise UserError("the text changed while it was prepared; start again")
        if number != DROPPED:
            yield _SPLITS[number], document


@dataclass(frozen=True)
class JoinedTexts:
    """Documents of several texts, one text after the other."""

    texts: Sequence[Iterable[str]]

    @property
    def letters(self) -> int:
        """Characters of all lines."""
        return sum(map(letters_of, self.texts))

    def __iter__(self) -> Iterator[str]:
        return chain.from_iterable(self.texts)
