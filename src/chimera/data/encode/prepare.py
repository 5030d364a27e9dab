"""Prepare data: corpus → tokenizer → token ids. Each stage is cached under a hash of its inputs.

If the inputs have not changed, no text is read. Text of files and of the hub is never in memory as
a whole: it is read once to divide it, once more if the tokenizer learns from it, and once to encode
it. Each stage that is not cached writes one line to the log `chimera`.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache as once
from pathlib import Path
from typing import Any

import numpy as np

from chimera.data.corpus.base import Data
from chimera.data.corpus.mixture import Mixture
from chimera.data.encode.packing import VERSION, MixedTokens, PackedTokens, dtype, pack
from chimera.data.source import cache
from chimera.data.source.cache import fingerprint_of
from chimera.data.source.splits import SHARES, DividedText, TrainText, divide_sources, is_whole
from chimera.data.source.splits import VERSION as DIVIDED_VERSION
from chimera.data.source.workers import FOR_ONE_PROCESS, cores
from chimera.data.tokenizer.base import VERSION as TOKENIZER_VERSION
from chimera.data.tokenizer.base import Tokenizer, TokenizerSettings, load
from chimera.errors import UserError

log = logging.getLogger("chimera")

_MOST_PROCESSES = 16


@dataclass(frozen=True)
class Prepared:
    """Data that is ready to be batched.

    Args:
        tokenizer: of the ids.
        splits: train, valid and test: `PackedTokens`, or another class that a task's data module
            reads.
        report: plain values for the record: documents, bytes and tokens of each split, hashes,
            seconds of each stage when it last ran.
    """

    tokenizer: Tokenizer
    splits: Mapping[str, Any]
    report: dict[str, Any]


def prepare(corpus: Data, settings: TokenizerSettings, cache_dir: Path | None = None) -> Prepared:
    """Prepare tokenizer and packed token ids of a corpus.

    Args:
        corpus: a choice of `data=`.
        settings: a choice of `tokenizer=`.
        cache_dir: the cache; None uses that of the corpus.

    Raises:
        UserError: the text or the tokenizer is not available.
    """
    root = cache_dir or corpus.cache
    sources = corpus.corpora if isinstance(corpus, Mixture) else {"": corpus}
    texts = [_Source(source, root, name) for name, source in sources.items()]
    corpus_hash = corpus.fingerprint()
    tokenizer, learning = prepare_tokenizer(
        settings, corpus_hash, lambda: TrainText([source.text() for source in texts]), root
    )
    folders, facts = zip(*(source.tokens(tokenizer) for source in texts), strict=True)
    report = {
        "corpus_sha256": corpus_hash,
        "tokens_sha256": _tokens_hash(folders),
        "splits": _summed([packed["splits"] for packed in facts]),
        "tokenizer_seconds": learning,
        "packing_seconds": sum(packed["seconds"] for packed in facts),
        "cache": ", ".join(map(str, folders)),
    }

    def row(split: str, *parts: Path) -> PackedTokens:
        return PackedTokens(tuple(part / f"{split}.bin" for part in parts), dtype(tokenizer))

    tokens: dict[str, Any] = {split: row(split, *folders) for split in facts[0]["splits"]}
    if isinstance(corpus, Mixture):
        by_source = zip(sources, facts, strict=True)
        report["sources"] = {name: packed["splits"] for name, packed in by_source}
        tokens["train"] = MixedTokens(tuple(row("train", each) for each in folders), corpus.recipe)
    return Prepared(tokenizer, tokens, report)


class _Source:
    """A corpus whose text is read only if its tokens are not in the cache.

    Args:
        corpus: the whole corpus or a source of a mixture.
        root: directory of the cache.
        name: of a source, for the log.
    """

    def __init__(self, corpus: Data, root: Path, name: str) -> None:
        self.corpus = corpus
        self.root = root
        self.name = f" of {name}" if name else ""
        self.hash = corpus.fingerprint()
        self.text = once(self._text)

    @property
    def processes(self) -> int:
        """Processes that read and encode the text, if it is large."""
        asked: int | None = getattr(self.corpus, "processes", None)
        return asked or min(cores(), _MOST_PROCESSES)

    def _text(self) -> DividedText:
        from rich.filesize import decimal

        start = time.perf_counter()
        sources = self.corpus.sources()

        def make(folder: Path) -> dict[str, Any]:
            return divide_sources(
                folder,
                sources,
                self.corpus.where,
                deduplicate=getattr(self.corpus, "deduplicate", False),
                processes=self.processes,
            )

        key = fingerprint_of(DIVIDED_VERSION, self.hash)
        entry = cache.entry(self.root, "divided", key, make, resume=True, check=is_whole)
        text = DividedText(*entry, sources)
        log.info(
            "data: %s documents%s, %s, read in %.1f s",
            f"{text.facts['documents']:,}",
            self.name,
            decimal(text.facts["bytes"]),
            time.perf_counter() - start,
        )
        return text

    def tokens(self, tokenizer: Tokenizer) -> tuple[Path, dict[str, Any]]:
        """Folder with the tokens of each split, and facts on them."""

        def make(folder: Path) -> dict[str, Any]:
            text = self.text()
            start = time.perf_counter()
            large = text.facts["bytes"] > FOR_ONE_PROCESS
            counts = pack(folder, text, tokenizer, self.processes if large else 1)
            if missing := [split for split in SHARES if split not in counts]:
                raise UserError(f"{self.corpus.where} has no text for {' and '.join(missing)}")
            seconds = time.perf_counter() - start
            sizes = ", ".join(f"{split} {facts['tokens']:,}" for split, facts in counts.items())
            log.info("tokens%s: %s, packed in %.1f s", self.name, sizes, seconds)
            return {"splits": counts, "seconds": seconds}

        def check(folder: Path, facts: dict[str, Any]) -> bool:
            width = np.dtype(dtype(tokenizer)).itemsize
            return set(facts["splits"]) == set(SHARES) and all(
                (folder / f"{split}.bin").stat().st_size == counts["tokens"] * width
                for split, counts in facts["splits"].items()
            )

        key = fingerprint_of(VERSION, self.hash, tokenizer.sha256)
        return cache.entry(self.root, "tokens", key, make, resume=True, check=check)


def _tokens_hash(folders: Sequence[Path]) -> str:
    """Hash of the ids of all splits: the same for the same tokens, wherever their text is from."""
    files = [sorted(cache.hashes(folder).items()) for folder in folders]
    ids = [[(name, digest) for name, digest in each if name.endswith(".bin")] for each in files]
    return hashlib.sha256(json.dumps(ids).encode()).hexdigest()


def _summed(counts: list[dict[str, dict[str, int]]]) -> dict[str, dict[str, int]]:
    """Documents, bytes and tokens of each split, all sources together."""
    return {
        split: {key: sum(each[split][key] for each in counts) for key in facts}
        for split, facts in counts[0].items()
    }


def prepare_tokenizer(
    settings: TokenizerSettings,
    corpus_hash: str,
    documents: Callable[[], Iterable[str]],
    root: Path,
) -> tuple[Tokenizer, float]:
    """Load the tokenizer from the cache, or build it.

    Args:
        settings: a choice of `tokenizer=`.
        corpus_hash: fingerprint of the corpus.
        documents: returns the training text; called only if the tokenizer learns from it.
        root: directory of the cache.

    Returns:
        The tokenizer, and the seconds that its building took.
    """

    def make(folder: Path) -> dict[str, Any]:
        text = documents() if settings.learns else ()
        start = time.perf_counter()
        tokenizer = settings.build(text)
        tokenizer.save(folder)
        seconds = time.perf_counter() - start
        log.info(
            "tokenizer: %s pieces, sha256 %s, built in %.1f s",
            f"{tokenizer.vocab_size:,}",
            tokenizer.sha256[:8],
            seconds,
        )
        return {"seconds": seconds}

    key = fingerprint_of(TOKENIZER_VERSION, settings.fingerprint(corpus_hash))
    folder, facts = cache.entry(root, "tokenizer", key, make)
    return load(folder), facts["seconds"]
