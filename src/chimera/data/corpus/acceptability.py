"""Acceptable or not: sentences of the embedded corpus and their corrupted twins (SPEC D2, D3).

What CoLA (arXiv 1805.12471) asks, made from what every machine has: sentences of `data=pydocs` are
acceptable, each one's twin is made unacceptable by one seeded change (`acceptability_changes`).
Twins stay in one part, and documents are divided as pydocs divides them, so that a model that was
pretrained there is asked about sentences of held-out documents. Labels are as good as the changes:
now and then a twin still is a sentence, so no model reaches a correlation of 1.
"""

# Without `from __future__ import annotations`, as in `chimera.data.corpus.base`.

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass

from chimera.data.corpus.acceptability_changes import corrupt
from chimera.data.corpus.labelled import Example, Examples, Labelled, evenly
from chimera.data.corpus.pydocs import PyDocs
from chimera.data.source.fingerprint import fingerprint_of
from chimera.types import NonNegativeInt, PositiveInt

VERSION = 1
_SENTENCE = re.compile(r"(?<=[a-z)\]][.!?]) +(?=[A-Z])")
_WORDS = re.compile(r"[A-Za-z][a-z'-]*(?:,? [A-Za-z][a-z'-]*)+\.")
_FEWEST, _MOST = 5, 20  # words of a sentence


@dataclass(frozen=True, kw_only=True)
class Acceptability(Labelled):
    """Sentences and corrupted twins.

    Args:
        pairs: sentences to train on, with as many twins; a tenth as many to validate and to test.
        twin_seed: of the changes.
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
        """See `Corpus.check`."""
        self._source().check()

    def fingerprint(self) -> str:
        """Of the corpus and of how its sentences are changed."""
        source = self._source().fingerprint()
        settings = (self.pairs, self.twin_seed, self.max_bytes)
        return fingerprint_of("acceptability", VERSION, source, *settings)

    def examples(self) -> Examples:
        """Sentences in the order of the hashes of their texts, each followed by its twin."""
        documents = self._source().splits()
        share = {"train": self.pairs, "valid": self.pairs // 10 + 1, "test": self.pairs // 10 + 1}
        parts: Examples = {}
        seen: set[str] = set()  # a sentence that documents share is asked about once
        for split, texts in documents.items():
            known = sorted(set(sentences("\n".join(texts))) - seen, key=_digest)
            seen.update(known)
            twins = ((s, corrupt(s, f"{self.twin_seed}:{s}")) for s in known)
            pairs = [(good, bad) for good, bad in twins if bad is not None][: share[split]]
            parts[split] = [
                Example(text, None, label, 2 * number + 1 - label)
                for number, (good, bad) in enumerate(pairs)
                for text, label in ((good, 1), (bad, 0))
            ]
        return parts | {"train": evenly(parts["train"], self.max_bytes)}

    def _source(self) -> PyDocs:
        return PyDocs(cache_dir=self.cache_dir)


def sentences(text: str) -> Iterator[str]:
    """Plain sentences of five to twenty words: no names of code, numbers or brackets."""
    for line in text.split("\n"):
        for sentence in _SENTENCE.split(line):
            if _FEWEST <= sentence.count(" ") + 1 <= _MOST and _WORDS.fullmatch(sentence):
                yield sentence


def _digest(sentence: str) -> bytes:
    return hashlib.sha256(sentence.encode()).digest()
