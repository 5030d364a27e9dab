"""Measure a few real steps of a run in a process of its own: `python -m chimera.train.warmup`.

It reads `{"config": …, "seconds": …, "began": …}` from standard input and writes what it measured
as JSON. Everything that a run writes goes into a temporary folder, which is deleted. The data are
those of the cache. Text that is not prepared yet is replaced by random tokens, because preparing
it takes longer than the measurement.
"""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
from lightning.pytorch.callbacks import Callback

from chimera.callback.log.metrics import peak_memory_gb
from chimera.callback.log.steps import Step
from chimera.callback.siblings import find
from chimera.callback.state.checkpoint import Checkpoints
from chimera.config.lengths import in_steps
from chimera.data.batch.module import DataModule
from chimera.data.encode.packing import PackedTokens
from chimera.data.encode.prepare import Prepared
from chimera.data.source import cache
from chimera.data.tokenizer.base import Ids, SpecialIds, Tokenizer
from chimera.errors import UserError
from chimera.rundir.atomic import make_folder
from chimera.rundir.directory import RunDir
from chimera.train.build import make_data, make_task
from chimera.train.callbacks import make_callbacks
from chimera.train.console import quiet
from chimera.train.curves import curves
from chimera.train.run import lengths
from chimera.train.trainer import make_trainer, trainer_settings

#: Most steps that are measured, and steps before them that are left out.
MOST, COLD = 40, 2
#: Batches of a validation that are measured.
BATCHES = 4
#: Entries of a vocabulary whose size only the data tell, and random tokens of a split.
VOCABULARY, TOKENS = 30_000, 200_000


@dataclass(frozen=True)
class Measured:
    """What a few steps took. Times are seconds, sizes are bytes.

    Args:
        start: from the start of the process to the first step.
        step, validation: of an optimiser step and of a batch without gradients.
        save, end: of a checkpoint; of the picture at the end.
        tokens: real tokens of a step, mean.
        checkpoint, row, test, tokenizer: of a checkpoint, of a row of steps.csv, of `test.npz`
            (compressed), of the tokenizer's folder.
        memory: peak, as in run.json.
        steps: number of measured steps.
        total: optimiser steps of the whole run; None if only the data tell, and they are not there.
        epoch, valid, test_batches: batches of an epoch, of a validation, of the test; likewise.
        prepared: the data were in the cache.
    """

    start: float
    step: float
    validation: float
    save: float
    end: float
    tokens: float
    checkpoint: int
    row: float
    test: int
    tokenizer: int
    memory: float
    steps: int
    total: int | None
    epoch: int | None
    valid: int | None
    test_batches: int | None
    prepared: bool


class Clock(Callback):
    """Times steps and validation batches; ends the training after some seconds.

    Args:
        seconds: of training.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.steps: list[Step] = []
        self.batches: list[float] = []
        self.first = 0.0

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.first, self._trainer = time.time(), trainer
        trainer.fit_loop.min_epochs = trainer.fit_loop.epoch_loop.min_steps = None

    def on_step(self, step: Step) -> None:
        """Stop between two steps, before the callback that saves has seen the step."""
        self.steps.append(step)
        late = time.time() - self.first > self.seconds
        if len(self.steps) >= MOST or (late and len(self.steps) > COLD):
            self._trainer.should_stop = True

    def on_validation_batch_start(self, *_: Any) -> None:
        self._began = time.perf_counter()

    def on_validation_batch_end(self, *_: Any) -> None:
        self.batches.append(time.perf_counter() - self._began)

    @property
    def warm(self) -> list[Step]:
        """The steps after the first ones, which warm caches up."""
        return self.steps[COLD:] or self.steps[1:] or self.steps


def measure(config: dict[str, Any], seconds: float, began: float, folder: Path) -> Measured:
    """Train a configuration for some seconds.

    Args:
        config: checked.
        seconds: of training; at least three steps are taken.
        began: time at which the process was started.
        folder: an empty one, for all files.

    Raises:
        UserError: the run could not start here, or its examples are not in the cache.
    """
    quiet()
    config = silenced(config)
    directory = RunDir(folder / "run")
    make_folder(directory.checkpoints, of=directory.path)
    settings, callbacks = trainer_settings(config), make_callbacks(config)
    pl.seed_everything(config["seed"], verbose=False)
    data, prepared = data_of(config, folder)
    task = make_task(config, data.prepared.tokenizer.vocab_size)
    task.configure_for(data, "fit")
    data.setup()
    settings = lengths(settings, data) if prepared else in_steps(settings, 1 << 40, valid=1, test=1)
    task.total_steps = settings.max_steps
    clock = Clock(seconds)
    few = min(BATCHES, settings.limit_val_batches or BATCHES)
    short = replace(settings, max_steps=MOST, limit_val_batches=few)
    trainer = make_trainer(config, short, directory, [], [callbacks[0], clock, *callbacks[1:]])
    trainer.fit(task, datamodule=data)
    trainer.limit_val_batches = few  # the schedule of validations has set it to 0
    trainer.validate(task, datamodule=data, verbose=False)
    data.save_test(directory.test_data)
    if prepared:
        data.prepared.tokenizer.save(directory.tokenizer)
    ended = time.perf_counter()
    curves(directory.steps, {}, directory.curves, config["name"])
    end = time.perf_counter() - ended
    saved = max(directory.checkpoints.glob("*.ckpt"), key=lambda file: file.stat().st_size)
    known = known_lengths(settings, data) if prepared else {}
    return Measured(
        start=clock.first - began,
        step=float(np.median([step.seconds for step in clock.warm])),
        validation=float(np.median(clock.batches)) if clock.batches else 0.0,
        save=max(find(trainer, Checkpoints).stalls, default=0.0),
        end=end,
        tokens=float(np.mean([step.tokens for step in clock.steps])),
        checkpoint=saved.stat().st_size,
        row=directory.steps.stat().st_size / len(clock.steps),
        test=directory.test_data.stat().st_size,
        tokenizer=sum(file.stat().st_size for file in directory.tokenizer.glob("*")),
        memory=1e9 * peak_memory_gb(),
        steps=len(clock.warm),
        total=known.get("total", None if config["trainer"]["max_epochs"] else settings.max_steps),
        epoch=known.get("epoch"),
        valid=known.get("valid"),
        test_batches=known.get("test"),
        prepared=prepared,
    )


def known_lengths(settings: Any, data: DataModule) -> dict[str, int]:
    """Steps of the run and batches of its epochs, validations and test."""
    loaders = {"valid": data.val_dataloader(), "test": data.test_dataloader()}
    limits = {"valid": settings.limit_val_batches, "test": settings.limit_test_batches}
    batches = {name: min(len(loaders[name]), limits[name] or 1 << 40) for name in loaders}
    return {"total": settings.max_steps, "epoch": len(data.train_dataloader()), **batches}


def silenced(config: dict[str, Any]) -> dict[str, Any]:
    """The configuration without progress and validation during training, in one process."""
    callbacks = dict(config["callbacks"])
    callbacks["progress"] = None
    callbacks["schedule"] = {**callbacks["schedule"], "every": 0, "epochs": None}
    trainer = {**config["trainer"], "devices": 1, "num_nodes": None, "profiler": None}
    return {**config, "callbacks": callbacks, "trainer": trainer}


def data_of(config: dict[str, Any], folder: Path) -> tuple[DataModule, bool]:
    """The data of a run and whether they are in the cache; random tokens in place of other text.

    Args:
        config: of the run.
        folder: for random tokens.

    Raises:
        UserError: labelled examples are not in the cache.
    """
    data = make_data(config)
    with cache.reading_only(), contextlib.suppress(cache.NotCached):
        data.prepare_data()
        return data, True
    from chimera.config import static

    if not static.attribute(config["task"]["_target_"], "plain_text", True):
        raise UserError("its examples are not prepared yet")
    words = RandomWords(config["tokenizer"].get("vocab_size") or VOCABULARY)
    data._prepared = Prepared(words, dict(_random(words, config["seed"], folder)), {})
    return data, False


class RandomWords(Tokenizer):
    """A vocabulary without words.

    Args:
        vocab_size: number of ids.
    """

    def __init__(self, vocab_size: int) -> None:
        super().__init__(SpecialIds(0, 1, 2, 3, 4), vocab_size, "")

    def encode(self, texts: Sequence[str]) -> list[Ids]:
        return [np.full(len(text), self.unk_id) for text in texts]

    def decode(self, ids: Any) -> str:
        return ""

    def _write(self, folder: Path) -> None: ...

    @classmethod
    def _read(cls, folder: Path, special: SpecialIds, sha256: str) -> RandomWords:
        raise NotImplementedError


def _random(words: Tokenizer, seed: int, folder: Path) -> Iterator[tuple[str, PackedTokens]]:
    draws = np.random.default_rng(seed)
    for split in ("train", "valid", "test"):
        ids = draws.integers(5, words.vocab_size, TOKENS).astype("<u4")
        ids[::200] = words.sep_id
        (folder / f"{split}.bin").write_bytes(ids.tobytes())
        yield split, PackedTokens(folder / f"{split}.bin", "<u4")


def main() -> int:
    """Measure what standard input asks for."""
    asked = json.load(sys.stdin)
    with tempfile.TemporaryDirectory(prefix="chimera-estimate-") as folder:
        try:
            found = measure(asked["config"], asked["seconds"], asked["began"], Path(folder))
        except UserError as error:
            print(json.dumps({"why": str(error)}))
            return 0
    print(json.dumps(asdict(found)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
