"""Batches of instructions with answers; the test set in a file.

The keys of a batch are those of `chimera.data.batch.causal`. `targets` are the tokens of the
answers, `index` the positions before them.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import cached_property, partial
from pathlib import Path

import numpy as np

from chimera.data.batch.collate import Example, collate, load_examples, save_examples
from chimera.data.batch.loader import InOrder
from chimera.data.batch.module import DataModule, Loadable
from chimera.data.corpus.instruct import Record, check_instructions
from chimera.data.encode.prepare import Prepared
from chimera.data.source.splits import Split
from chimera.data.tokenizer.base import Tokenizer

log = logging.getLogger("chimera")


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


class InstructDataModule(DataModule):
    """Prompts with answers; only the answers are predicted."""

    @cached_property
    def records(self) -> dict[Split, list[Record]]:
        """Records of each split."""
        return self.corpus.records()

    def save_test(self, file: Path) -> None:
        samples = self.test_dataloader().samples
        save_examples([samples[0, index] for index in range(len(samples))], file)

    def _prepare(self) -> Prepared:
        check_instructions(self.corpus)
        return super()._prepare()

    def _samples(self, split: Split) -> Loadable:
        tokenizer = self.prepared.tokenizer
        width = self.corpus.pad_to or 0
        length = width or self.corpus.seq_len
        start = tokenizer.opening(packed=False)
        records = self.records[split]
        examples = [example(i, r, tokenizer, length, start) for i, r in enumerate(records)]
        full = [r for r, e in zip(records, examples, strict=True) if len(e.ids) == length]
        sizes = [len(start) + sum(map(len, tokenizer.encode([*record]))) for record in full]
        if cut := sum(size > length for size in sizes):
            log.warning(
                "data: %d of %d records of the %s split are longer than data.%s=%d: an answer"
                " loses its end, a long prompt its beginning",
                cut,
                len(records),
                split,
                "pad_to" if width else "seq_len",
                length,
            )
        return InOrder(examples), partial(collate, pad_id=tokenizer.pad_id, width=width)

    def _stored(self, file: Path) -> Loadable:
        return InOrder(load_examples(file)), partial(collate, pad_id=0)
