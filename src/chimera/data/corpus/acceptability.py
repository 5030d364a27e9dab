"""Acceptability of sentences of the embedded corpus and their corrupted twins (SPEC D2, D3).

The task is that of CoLA (arXiv 1805.12471), made from text that all machines have. Sentences of
`data=pydocs` are acceptable. Each has a twin, made unacceptable by one seeded change
(`acceptability_changes`). A sentence and its twin are in the same part. The documents are divided
as in pydocs, so a model pretrained there is tested on sentences of held-out documents. A changed
sentence is sometimes still correct, so no model reaches a correlation of 1.
"""

# No `from __future__ import annotations`, as in `chimera.data.corpus.base`.

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
_FEWEST, _MOST = 5, 20  # limits of the number of words of a sentence


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
        """See `Corpus.check`."""
        self._source().check()

    def fingerprint(self) -> str:
        """Hash of the source corpus and of the settings of the changes."""
        source = self._source().fingerprint()
        settings = (self.pairs, self.twin_seed, self.max_bytes)
        return fingerprint_of("acceptability", VERSION, source, *settings)

    def examples(self) -> Examples:
        """Sentences in the order of their hashes, each followed by its twin."""
        documents = self._source().splits()
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
