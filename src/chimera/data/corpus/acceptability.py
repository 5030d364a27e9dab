"""Acceptability of sentences of the embedded corpus and their corrupted twins (SPEC D2, D3).

The task is that of CoLA (arXiv 1805.12471), made from text that all machines have. Sentences of
`data=pydocs` are acceptable. Each has a twin, made unacceptable by one seeded change (`corrupt`):
wrong agreement (is → are); a function word dropped, doubled, moved, or exchanged for one of another
class; two adjacent words swapped. Most examples in CoLA violate such rules. A sentence and its twin
are in the same part. The documents are divided as in pydocs, so a model pretrained there is tested
on sentences of held-out documents. A changed sentence is sometimes still correct, so no model
reaches a correlation of 1.
"""

# No `from __future__ import annotations`, as in `chimera.data.corpus.base`.

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from chimera.data.corpus.labelled import Example, Examples, Labelled, evenly
from chimera.data.corpus.pydocs import PyDocs
from chimera.data.source.cache import fingerprint_of
from chimera.data.source.splits import divided
from chimera.types import NonNegativeInt, PositiveInt

VERSION = 1
_SENTENCE = re.compile(r"(?<=[a-z)\]][.!?]) +(?=[A-Z])")
_WORDS = re.compile(r"[A-Za-z][a-z'-]*(?:,? [A-Za-z][a-z'-]*)+\.")
_FEWEST, _MOST = 5, 20  # limits of the number of words of a sentence

#: In the order in which the random numbers choose them.
_CHANGES = ("agree", "drop", "double", "exchange", "swap", "move")
_AGREEMENT = {
    "is": "are",
    "are": "is",
    "was": "were",
    "were": "was",
    "has": "have",
    "have": "has",
    "does": "do",
    "this": "these",
    "these": "this",
    "that": "those",
    "those": "that",
    "can": "cans",
    "must": "musts",
    "will": "wills",
    "be": "is",
    "been": "was",
}
_DETERMINERS = ("the", "a", "an", "this", "these", "each", "all")
_PREPOSITIONS = ("of", "to", "in", "for", "by", "with", "from", "on", "at", "into")
_NEEDED = (*_DETERMINERS[:3], *_PREPOSITIONS, "is", "are", "be", "and", "that", "not", "it")


@dataclass(frozen=True, kw_only=True)
class Acceptability(Labelled):
    """Sentences and corrupted twins.

    Args:
        pairs: number of training sentences, each with its twin; validation and test have a tenth.
        twin_seed: seed of the changes.
    """

    pairs: PositiveInt = 4000
    twin_seed: NonNegativeInt = 0

    @property
    def labels(self) -> tuple[str, ...]:
        return ("unacceptable", "acceptable")

    @property
    def metrics(self) -> tuple[str, ...]:
        return ("mcc",)

    def check(self) -> None:
        """See `Data.check`."""
        self._source().check()

    def fingerprint(self) -> str:
        """Hash of the source corpus and of the settings of the changes."""
        source = self._source().fingerprint()
        settings = (self.pairs, self.twin_seed, self.max_bytes)
        return fingerprint_of("acceptability", VERSION, source, *settings)

    def examples(self) -> Examples:
        """Sentences in the order of their hashes, each followed by its twin."""
        documents = divided(self._source().sources(), "pydocs")
        counts = {"train": self.pairs, "valid": self.pairs // 10 + 1, "test": self.pairs // 10 + 1}
        parts: Examples = {}
        seen: set[str] = set()  # a sentence that occurs in several documents is used once
        for split, texts in documents.items():
            unseen = sorted(set(sentences("\n".join(texts))) - seen, key=_digest)
            seen.update(unseen)
            twins = ((s, corrupt(s, f"{self.twin_seed}:{s}")) for s in unseen)
            pairs = [(good, bad) for good, bad in twins if bad is not None][: counts[split]]
            parts[split] = [
                Example(text, None, label, 2 * number + 1 - label)
                for number, (good, bad) in enumerate(pairs)
                for text, label in ((good, 1), (bad, 0))
            ]
        return parts | {"train": evenly(parts["train"], self.max_bytes)}

    def _source(self) -> PyDocs:
        return PyDocs(cache_dir=self.cache_dir)


def sentences(text: str) -> Iterator[str]:
    """Plain sentences of five to twenty words, without code, numbers and brackets."""
    for line in text.split("\n"):
        for sentence in _SENTENCE.split(line):
            if _FEWEST <= sentence.count(" ") + 1 <= _MOST and _WORDS.fullmatch(sentence):
                yield sentence


def _digest(sentence: str) -> bytes:
    return hashlib.sha256(sentence.encode()).digest()


def corrupt(sentence: str, seed: str) -> str | None:
    """Apply one change to a sentence; None if no change applies.

    Args:
        sentence: words separated by blanks, with a full stop at the end.
        seed: of the kind of change and its position.
    """
    digest = hashlib.sha256(seed.encode()).digest()
    rng = np.random.default_rng(int.from_bytes(digest[:8], "little"))
    words = sentence.removesuffix(".").split(" ")
    words[0] = words[0][0].lower() + words[0][1:]
    for number in rng.permutation(len(_CHANGES)):
        changed = _changed(_CHANGES[number], words, rng)
        if changed is not None and changed != words:
            text = " ".join(changed)
            return f"{text[0].upper()}{text[1:]}."
    return None


def _changed(change: str, words: list[str], rng: np.random.Generator) -> list[str] | None:
    """The words after a change at a random place; None if there is no place for it."""
    candidates = words[:-1] if change == "swap" else words
    allowed = {"agree": tuple(_AGREEMENT), "exchange": (*_DETERMINERS, *_PREPOSITIONS)}
    at = _choose([i for i, w in enumerate(candidates) if w in allowed.get(change, _NEEDED)], rng)
    if at is None:
        return None
    word = words[at]
    before = words[:at]
    after = words[at + 1 :]
    if change == "agree":
        return [*before, _AGREEMENT[word], *after]
    if change == "double":
        return [*before, word, word, *after]
    if change == "exchange":
        return [
            *before,
            str(rng.choice(_PREPOSITIONS if word in _DETERMINERS else _DETERMINERS)),
            *after,
        ]
    if change == "swap":
        return [*before, after[0], word, *after[1:]]
    if change == "move":  # by three or more positions
        to = _choose([i for i in range(len(words)) if abs(i - at) >= 3], rng)
        rest = before + after
        return None if to is None else [*rest[:to], word, *rest[to:]]
    return before + after


def _choose(positions: list[int], rng: np.random.Generator) -> int | None:
    return int(rng.choice(positions)) if positions else None
