"""A CSV row per optimiser step with exactly the fields of TITAN Table 5 (SPEC T5).

Append-only and unbuffered: the rows are on disk whatever happens to the process.
"""

from __future__ import annotations

import csv
import errno
import io
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback

from chimera.callback.log.steps import Step
from chimera.rundir.directory import RunDir

FIELDS = (
    "timestamp",
    "epoch",
    "step",
    "global_step",
    "loss",
    "accuracy",
    "learning_rate",
    "grad_norm",
    "scaler_scale",
    "gpu_memory_gb",
    "gpu_cached_gb",
)


class StepLog(Callback):
    """Writes the rows; a resumed run first cuts off those past the step that it resumes from."""

    def __init__(self) -> None:
        self._file: io.FileIO | None = None
        self._end = 0

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.is_global_zero:
            self.open(RunDir(Path(trainer.default_root_dir)).steps, trainer.global_step)

    def open(self, path: Path, resumed_step: int = 0) -> None:
        """Begin a file, or go on with one.

        Args:
            path: of the CSV file.
            resumed_step: optimiser steps already taken by the checkpoint resumed from.
        """
        # Cut in place: rows that count are never anywhere but on disk, whenever we are killed.
        # Unbuffered: on a full disk a row is there or not, and nothing is left to fail at the end.
        self._file = path.open("r+b" if path.exists() else "w+b", buffering=0)
        self._end = _end_of(self._file.read(), resumed_step)
        self._file.truncate(self._end)
        self._file.seek(self._end)
        if not self._end:
            self._write(FIELDS)

    def on_step(self, step: Step) -> None:
        cuda = torch.cuda.is_available()
        clipped = min(step.grad_norm, step.clip) if step.clip else step.grad_norm
        self._write(
            (
                step.timestamp,
                step.epoch,
                step.step,
                step.global_step,
                step.loss,
                step.accuracy,
                step.lr,
                clipped,  # Table 5: the norm after clipping
                step.scaler_scale,
                torch.cuda.memory_allocated() / 1e9 if cuda else 0.0,
                torch.cuda.memory_reserved() / 1e9 if cuda else 0.0,
            )
        )

    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.close()

    def on_exception(self, trainer: pl.Trainer, pl_module: Any, exception: BaseException) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; no row is written after this."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _write(self, row: Iterable[object]) -> None:
        if self._file is None:  # of a process that keeps no log
            return
        line = io.StringIO()
        csv.writer(line).writerow(row)
        data = line.getvalue().encode()
        try:
            if self._file.write(data) != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self._file.name)
        except OSError:
            self._file.truncate(self._end)
            raise
        self._end += len(data)


def _end_of(data: bytes, step: int) -> int:
    """Offset of the end of a step's row; a last line torn by a kill does not count."""
    head = (",".join(FIELDS) + "\r\n").encode()
    if step == 0 or not data.startswith(head):
        return 0
    end = len(head)
    for line in data[end:].splitlines(keepends=True):
        if not line.endswith(b"\n") or int(line.split(b",")[FIELDS.index("global_step")]) > step:
            break
        end += len(line)
    return end
