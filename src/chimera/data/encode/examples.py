"""Encode labelled texts and pairs of texts as token ids (SPEC D2). Does not import torch.

A text becomes start·a·end, a pair start·a·middle·b·end, by the tokenizer's template; with BERT's
these are [CLS] a [SEP] and [CLS] a [SEP] b [SEP]. An example that is too long loses tokens at the
end of its longer text. The cache stores the ids under a hash of corpus, tokenizer and length.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache as once
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from chimera.data.corpus.labelled import Example, Labelled
from chimera.data.encode.packing import dtype
from chimera.data.encode.prepare import Prepared, prepare_tokenizer
from chimera.data.source import cache
from chimera.data.source.cache import fingerprint_of
from chimera.data.source.files import parsing, read_arrays, save_arrays
from chimera.data.tokenizer.base import Ids, Template, Tokenizer, TokenizerSettings
from chimera.errors import UserError

log = logging.getLogger("chimera")

VERSION = 2
_FILE = "parts.npz"
_AT_ONCE = 4000  # texts encoded in one call


@dataclass(frozen=True)
class Encoded:
    """Concatenated token ids of the n examples of one part.

    Args:
        ids: [all tokens].
        ends: [n] end of each example in `ids`.
        seconds: [n] number of tokens at the end of each example that belong to its second text.
        labels: [n] classes or scores; NaN for an example without a label.
        index: [n] number of each example in a submission.
    """

    ids: npt.NDArray[Any]
    ends: Ids
    seconds: Ids
    labels: npt.NDArray[np.float64]
    index: Ids

    def __len__(self) -> int:
        return len(self.ends)

    @property
    def lengths(self) -> Ids:
        """Number of tokens of each example [n]."""
        return np.diff(self.ends, prepend=0)

    def row(self, number: int) -> Ids:
        """Ids of one example [t]."""
        start = self.ends[number - 1] if number else 0
        return self.ids[start : self.ends[number]].astype(np.int64)


def prepare_examples(corpus: Labelled, settings: TokenizerSettings) -> Prepared:
    """Prepare tokenizer and ids of a labelled corpus; `Prepared.splits` has an `Encoded` per part.

    Args:
        corpus: a choice of `data=` with labels.
        settings: a choice of `tokenizer=`.

    Raises:
        UserError: data or tokenizer are not available, or `data.seq_len` is too short.
    """
    root = corpus.cache
    corpus_hash = corpus.fingerprint()
    examples = once(corpus.examples)

    def texts() -> list[str]:
        return [t for e in examples()["train"] for t in (e.first, e.second) if t]

    tokenizer, seconds = prepare_tokenizer(settings, corpus_hash, texts, root)

    def encode_all(folder: Path) -> dict[str, Any]:
        start = time.perf_counter()
        parts = {k: encode(rows, tokenizer, corpus.seq_len) for k, rows in examples().items()}
        save_parts(parts, folder / _FILE)
        counts = {k: {"examples": len(e), "tokens": len(e.ids)} for k, e in parts.items()}
        duration = time.perf_counter() - start
        sizes = ", ".join(f"{part} {count['examples']:,}" for part, count in counts.items())
        log.info("examples: %s, encoded in %.1f s", sizes, duration)
        return {"splits": counts, "seconds": duration}

    key = fingerprint_of(VERSION, corpus_hash, tokenizer.sha256, corpus.seq_len, tokenizer.template)
    folder, facts = cache.entry(
        root, "examples", key, encode_all, check=lambda folder, _: load_parts(folder / _FILE)
    )
    parts = load_parts(folder / _FILE)
    report = {
        "corpus_sha256": corpus_hash,
        "tokens_sha256": _hash(parts),
        "splits": facts["splits"],
        "tokenizer_seconds": seconds,
        "packing_seconds": facts["seconds"],
        "cache": str(folder),
    }
    return Prepared(tokenizer, parts, report)


def _hash(parts: Mapping[str, Encoded]) -> str:
    """Hash of the ids and labels of all parts."""
    found = hashlib.sha256()
    for name, part in sorted(parts.items()):
        found.update(name.encode())
        for field in fields(part):
            found.update(np.ascontiguousarray(getattr(part, field.name)).tobytes())
    return found.hexdigest()


def encode(examples: Sequence[Example], tokenizer: Tokenizer, length: int) -> Encoded:
    """Encode examples, each as at most `length` token ids.

    Raises:
        UserError: `length` leaves no room for text.
    """
    rows: list[Ids] = []
    seconds = []
    cut = 0
    around = tokenizer.template
    for start in range(0, len(examples), _AT_ONCE):
        chunk = examples[start : start + _AT_ONCE]
        first_texts = tokenizer.encode([e.first for e in chunk])
        second_texts = iter(tokenizer.encode([e.second for e in chunk if e.second is not None]))
        for example, a in zip(chunk, first_texts, strict=True):
            b = None if example.second is None else next(second_texts)
            row, second = frame(a, b, around, length)
            texts = len(a) if b is None else len(a) + len(around.middle) + len(b)
            cut += len(around.start) + texts + len(around.end) > length
            rows.append(row)
            seconds.append(second)
    if cut:
        log.warning(
            "data: %d of %d examples are longer than data.seq_len=%d and lose the end of a text",
            cut,
            len(examples),
            length,
        )
    return Encoded(
        np.concatenate(rows).astype(dtype(tokenizer)),
        np.cumsum([len(row) for row in rows]),
        np.array(seconds),
        np.array([np.nan if e.label is None else e.label for e in examples], dtype=np.float64),
        np.array([e.row for e in examples], dtype=np.int64),
    )


def frame(a: Ids, b: Ids | None, template: Template, length: int) -> tuple[Ids, int]:
    """Add special tokens to an example and cut it to `length` tokens.

    Args:
        a: ids of the first text.
        b: ids of the second text, if there is one.
        template: of the tokenizer.
        length: largest number of tokens.

    Returns:
        The ids, and the number of tokens at their end that belong to the second text.

    Raises:
        UserError: fewer than two tokens of text would fit.
    """
    middle = template.middle if b is not None else ()
    room = length - len(template.start) - len(middle) - len(template.end)
    if room < 2:
        raise UserError(f"data.seq_len={length} leaves no room for text; give a larger one")
    if b is None:
        row = np.concatenate([template.start, a[:room], template.end])
        return row.astype(np.int64), 0
    if len(a) + len(b) > room:
        longer = max(room - min(len(a), len(b)), -(-room // 2))
        a = a[:longer] if len(a) >= len(b) else a[: room - min(longer, len(b))]
        b = b[: room - len(a)]
    row = np.concatenate([template.start, a, middle, b, template.end])
    return row.astype(np.int64), len(b) + len(template.end)


def save_parts(parts: Mapping[str, Encoded], file: Path) -> None:
    """Write parts to a file."""
    arrays: dict[str, Any] = {
        f"{part}/{name}": array
        for part, examples in parts.items()
        for name, array in vars(examples).items()
    }
    save_arrays(file, **arrays)


def load_parts(file: Path) -> dict[str, Encoded]:
    """Read the parts that `save_parts` wrote.

    Raises:
        UserError: the file holds something else.
    """
    parts: dict[str, dict[str, Any]] = {}
    for key, array in read_arrays(file).items():
        part, _, name = key.rpartition("/")
        parts.setdefault(part, {})[name] = array
    names = {field.name for field in fields(Encoded)}
    for part, arrays in parts.items():
        if set(arrays) != names:
            raise UserError(f"{file}: {part or 'it'} holds {', '.join(arrays)}, no examples")
        with parsing(f"{file}: {part}", "a part of a test set"):
            ends = arrays["ends"]
            lengths = {arrays[name].shape for name in names - {"ids"}}
            whole = len(lengths) == ends.ndim == 1 and (np.diff(ends, prepend=0) >= 0).all()
            if not whole or ends[-1:].sum() != arrays["ids"].size:
                raise UserError(f"{file}: {part} is damaged: the lengths of its arrays do not fit")
    return {part: Encoded(**arrays) for part, arrays in parts.items()}


def class_counts(part: Encoded, classes: int) -> Ids:
    """Number of examples of each class [classes]."""
    return np.bincount(part.labels[~np.isnan(part.labels)].astype(np.int64), minlength=classes)
