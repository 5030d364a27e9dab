"""A task of each kind with a small model, and the data module that makes its batches."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from chimera.config.settings import Model, Optim
from chimera.contract_tests import zoo
from chimera.data.batch.causal import CausalDataModule
from chimera.data.batch.instruct import InstructDataModule
from chimera.data.batch.labelled import LabelledDataModule
from chimera.data.batch.mlm import MLMDataModule
from chimera.data.batch.module import DataModule
from chimera.data.batch.synthetic import SyntheticDataModule
from chimera.data.corpus.glue import Glue
from chimera.data.corpus.instruct import Instruct as Instructions
from chimera.data.corpus.synthetic.languages import RegBench
from chimera.data.tokenizer.symbols import Symbols
from chimera.data.tokenizer.word import Words
from chimera.task.base import Task
from chimera.task.causal_lm import CausalLM
from chimera.task.instruct import Instruct
from chimera.task.mlm import MaskedLM
from chimera.task.sequence_classification import SequenceClassification
from chimera.task.synthetic import Synthetic
from tests.data.glue import mnli
from tests.data.kit import Toy, small_piece

SHAPE = Model(dim=32, depth=1, heads=4, max_len=64)
Made = tuple[Task, DataModule]


def _task(kind: type[Task], data: DataModule, steps: int, **options: object) -> Task:
    vocab = data.prepared.tokenizer.vocab_size
    model = zoo.model(SHAPE, causal=bool(kind.causal), vocab_size=vocab, position="rope")
    return kind(model, Optim(lr=1e-3), steps, vocab, **options)  # type: ignore[call-arg, arg-type]


def mlm(folder: Path, steps: int, workers: int = 0) -> Made:
    data = MLMDataModule(Toy(seq_len=16, **_given(folder, workers)), small_piece())
    return _task(MaskedLM, data, steps), data


def causal_lm(folder: Path, steps: int, workers: int = 0) -> Made:
    data = CausalDataModule(Toy(seq_len=16, **_given(folder, workers)), small_piece())
    return _task(CausalLM, data, steps, longer=[2]), data


def classification(folder: Path, steps: int, workers: int = 0) -> Made:
    if not (folder / "glue").is_dir():
        mnli(folder / "glue")
    given = {"path": str(folder / "glue"), "seq_len": 32, **_given(folder, workers)}
    data = LabelledDataModule(Glue(task="mnli", **given), Words())
    return _task(SequenceClassification, data, steps, class_weights="balanced", dropout=0.0), data


def instruct(folder: Path, steps: int, workers: int = 0) -> Made:
    data = instructions(folder, map(str, range(80)), **_given(folder, workers))
    return _task(Instruct, data, steps, mmlu="held_out", mmlu_limit=2), data


def instructions(folder: Path, answers: Iterable[str], **given: Any) -> InstructDataModule:
    """Data with these answers."""
    file = folder / "records.json"
    records = [
        {"instruction": f"Say {i}.", "input": "", "output": text} for i, text in enumerate(answers)
    ]
    file.write_text(json.dumps(records))
    return InstructDataModule(Instructions(path=str(file), seq_len=32, **given), Words())


def synthetic(folder: Path, steps: int, workers: int = 0) -> Made:
    shape = {"seq_len": 24, "test_len": 32, "samples": 20, "held_out": 18}
    corpus = RegBench(**shape, **_given(folder, workers))
    data = SyntheticDataModule(corpus, Symbols(size=corpus.vocabulary))
    return _task(Synthetic, data, steps), data


def _given(folder: Path, workers: int) -> dict[str, Any]:
    return {"batch_size": 4, "cache_dir": str(folder), "num_workers": workers}


TASKS: dict[str, Callable[..., Made]] = {
    "mlm": mlm,
    "causal_lm": causal_lm,
    "classification": classification,
    "instruct": instruct,
    "synthetic": synthetic,
}
