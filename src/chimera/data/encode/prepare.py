"""Prepare data: corpus → tokenizer → token ids. Each stage is cached under a hash of its inputs.

If the inputs have not changed, no text is read. Text of files and of the hub is never in memory as
a whole: it is read once to divide it, once more if the tokenizer learns from it, and once to encode
it. Each stage that is not cached writes one line to
the log `chimera`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache as once
from pathlib import Path
from typing import Any

from chimera.data.corpus.base import Corpus, StreamedText
from chimera.data.encode.divided import VERSION as DIVIDED_VERSION
from chimera.data.encode.divided import DividedText, ListedText, divide_sources
from chimera.data.encode.packing import VERSION, PackedTokens, dtype, pack
from chimera.data.encode.workers import FOR_ONE_PROCESS, cores
from chimera.data.source import cache
from chimera.data.source.fingerprint import fingerprint_of
from chimera.data.tokenizer.base import VERSION as TOKENIZER_VERSION
from chimera.data.tokenizer.base import Tokenizer, TokenizerSettings, load

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


def prepare(corpus: Corpus, settings: TokenizerSettings, cache_dir: Path | None = None) -> Prepared:
    """Prepare tokenizer and packed token ids of a corpus.

    Args:
        corpus: a choice of `data=`.
        settings: a choice of `tokenizer=`.
        cache_dir: the cache; None uses that of the corpus.

    Raises:
        UserError: the text or the tokenizer is not available.
    """
    root = cache_dir or corpus.cache
    corpus_hash = corpus.fingerprint()

    @once
    def text() -> DividedText | ListedText:
        start = time.perf_counter()
        if isinstance(corpus, StreamedText):
            text: DividedText | ListedText = _divided(corpus, corpus_hash, root)
        else:
            text = ListedText(corpus.splits())
        log.info(
            "data: %s documents, %.1f MB, read in %.1f s",
            f"{text.facts['documents']:,}",
            text.facts["bytes"] / 1e6,
            time.perf_counter() - start,
        )
        return text

    def make_tokens(folder: Path) -> dict[str, Any]:
        documents = text()
        start = time.perf_counter()
        large = documents.facts["bytes"] > FOR_ONE_PROCESS
        counts = pack(folder, documents, tokenizer, _processes(corpus) if large else 1)
        seconds = time.perf_counter() - start
        sizes = ", ".join(f"{split} {facts['tokens']:,}" for split, facts in counts.items())
        log.info("tokens: %s, packed in %.1f s", sizes, seconds)
        return {"splits": counts, "seconds": seconds}

    tokenizer, learning = prepare_tokenizer(settings, corpus_hash, lambda: text().train, root)
    key = fingerprint_of(VERSION, corpus_hash, tokenizer.sha256)
    folder, packed = cache.entry(root, "tokens", key, make_tokens, resume=True)
    tokens = {s: PackedTokens(folder / f"{s}.bin", dtype(tokenizer)) for s in packed["splits"]}
    report = {
        "corpus_sha256": corpus_hash,
        "splits": packed["splits"],
        "tokenizer_seconds": learning,
        "packing_seconds": packed["seconds"],
        "cache": str(folder),
    }
    return Prepared(tokenizer, tokens, report)


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


def _divided(corpus: StreamedText, corpus_hash: str, root: Path) -> DividedText:
    sources = corpus.sources()

    def make(folder: Path) -> dict[str, Any]:
        return divide_sources(
            folder,
            sources,
            corpus.where,
            deduplicate=corpus.deduplicate,
            processes=_processes(corpus),
        )

    key = fingerprint_of(DIVIDED_VERSION, corpus_hash)
    folder, facts = cache.entry(root, "divided", key, make, resume=True)
    return DividedText(folder, facts, sources)


def _processes(corpus: Corpus | StreamedText) -> int:
    asked: int | None = getattr(corpus, "processes", None)
    return asked or min(cores(), _MOST_PROCESSES)
