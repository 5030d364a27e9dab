"""Batches of instructions with answers, and the test set kept in a file.

A batch is as in `chimera.data.batch.causal`; `index` are the positions before each token of the
answers, `targets` those tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from chimera.data.batch.collate import Collate, Example
from chimera.data.batch.loader import Key, ResumableLoader
from chimera.data.corpus.base import Data
from chimera.data.corpus.instruct import Record
from chimera.data.tokenizer.base import Tokenizer


def example(
    number: int, record: Record, tokenizer: Tokenizer, length: int, start: Sequence[int] = ()
) -> Example:
    """A record in at most `length` tokens; of a long one the end of the answer is cut off.

    Of a prompt that leaves no room for an answer the beginning is.
    """
    asked, told = tokenizer.encode([record.prompt, record.answer])
    told = np.append(told, tokenizer.sep_id)
    asked = np.concatenate([np.array(start, dtype=np.int64), asked[-(length - len(start) - 1) :]])
    row = np.concatenate([asked, told])[: length + 1]
    positions = np.arange(len(asked) - 1, len(row) - 1)
    return Example(number, row[:-1], positions, row[1:][positions])


class Samples:
    """Examples by (epoch, index), the same in all epochs."""

    def __init__(self, examples: Sequence[Example]) -> None:
        self.examples = examples

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, key: Key) -> Example:
        return self.examples[key[1]]


def loader(
    examples: Sequence[Example],
    settings: Data,
    pad_id: int,
    *,
    seed: int = 0,
    train: bool = False,
    name: str,
) -> ResumableLoader:
    """Shuffled batches to train on, or all in order."""
    return ResumableLoader.of(
        Samples(examples), settings, Collate(pad_id), train=train, seed=seed, name=name
    )


def save(examples: Sequence[Example], pad_id: int, file: Path) -> None:
    """Write examples, so that a test can be repeated."""
    rows = [np.concatenate([e.ids, e.targets[-1:]]) for e in examples]
    np.savez_compressed(
        file,
        ids=np.concatenate(rows),
        lengths=np.array([len(row) for row in rows]),
        asked=np.array([e.positions[0] for e in examples]),
        pad=np.array(pad_id),
    )


def load(file: Path) -> tuple[list[Example], int]:
    """What `save` wrote: examples, and the padding's id."""
    with np.load(file) as stored:
        rows = np.split(stored["ids"], np.cumsum(stored["lengths"])[:-1])
        examples = [
            Example(i, row[:-1], np.arange(first, len(row) - 1), row[first + 1 :])
            for i, (row, first) in enumerate(zip(rows, stored["asked"], strict=True))
        ]
        return examples, int(stored["pad"])
