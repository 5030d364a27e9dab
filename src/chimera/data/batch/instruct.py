"""Batches of instructions with answers; the test set in a file.

The keys of a batch are those of `chimera.data.batch.causal`. `targets` are the tokens of the
answers, `index` the positions before them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import numpy as np

from chimera.data.batch.collate import Collate, Example
from chimera.data.batch.loader import Key, ResumableLoader
from chimera.data.batch.module import DataModule
from chimera.data.corpus.base import Data
from chimera.data.corpus.instruct import Record, check_instructions
from chimera.data.encode.prepare import Prepared
from chimera.data.source.arrays import read_arrays
from chimera.data.source.splits import Split
from chimera.data.tokenizer.base import Tokenizer


def example(
    number: int, record: Record, tokenizer: Tokenizer, length: int, start: Sequence[int] = ()
) -> Example:
    """Encode a record as at most `length` tokens, start, prompt and answer.

    A long answer loses its end; a prompt that leaves no room for an answer loses its beginning.

    Args:
        number: of the record.
        record: prompt and answer.
        tokenizer: of the model.
        length: largest number of tokens.
        start: ids before the prompt.
    """
    prompt, answer = tokenizer.encode([record.prompt, record.answer])
    answer = np.append(answer, tokenizer.sep_id)
    prompt = np.concatenate([np.array(start, dtype=np.int64), prompt[-(length - len(start) - 1) :]])
    row = np.concatenate([prompt, answer])[: length + 1]
    positions = np.arange(len(prompt) - 1, len(row) - 1)
    return Example(number, row[:-1], positions, row[1:][positions])


class Samples:
    """Examples by (epoch, index); the same in all epochs."""

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
    """Make a loader: shuffled whole batches for training, else all examples in order."""
    return ResumableLoader.of(
        Samples(examples), settings, Collate(pad_id), train=train, seed=seed, name=name
    )


class InstructDataModule(DataModule):
    """Prompts with answers; only the answers are predicted."""

    @cached_property
    def records(self) -> dict[Split, list[Record]]:
        """Records of each split."""
        records: dict[Split, list[Record]] = self.corpus.records()
        return records

    def save_test(self, file: Path) -> None:
        samples = self.test_dataloader().samples
        save([samples[0, i] for i in range(len(samples))], 0, file)

    def _prepare(self) -> Prepared:
        check_instructions(self.corpus)
        return super()._prepare()

    def _make_loader(self, split: Split) -> ResumableLoader:
        tokenizer = self.prepared.tokenizer
        length = self.corpus.seq_len
        examples = [
            example(i, record, tokenizer, length, tokenizer.template.start)
            for i, record in enumerate(self.records[split])
        ]
        return loader(
            examples,
            self.corpus,
            tokenizer.pad_id,
            seed=self.seed,
            train=split == "train",
            name=f"the {split} split",
        )

    def _make_test_loader(self, file: Path) -> ResumableLoader:
        examples, pad_id = load(file)
        return loader(examples, self.corpus, pad_id, name=str(file))


def save(examples: Sequence[Example], pad_id: int, file: Path) -> None:
    """Write examples to a file, so that the test can be repeated without the corpus."""
    rows = [np.concatenate([e.ids, e.targets[-1:]]) for e in examples]
    np.savez_compressed(
        file,
        ids=np.concatenate(rows),
        lengths=np.array([len(row) for row in rows]),
        asked=np.array([e.positions[0] for e in examples]),
        pad=np.array(pad_id),
    )


def load(file: Path) -> tuple[list[Example], int]:
    """Read the examples and the padding id that `save` wrote.

    Raises:
        UserError: the file holds something else.
    """
    stored = read_arrays(file, "ids", "lengths", "asked", "pad")
    rows = np.split(stored["ids"], np.cumsum(stored["lengths"])[:-1])
    examples = [
        Example(i, row[:-1], np.arange(first, len(row) - 1), row[first + 1 :])
        for i, (row, first) in enumerate(zip(rows, stored["asked"], strict=True))
    ]
    return examples, int(stored["pad"])
