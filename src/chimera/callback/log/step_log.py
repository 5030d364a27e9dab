"""A CSV row per optimiser step with exactly the fields of TITAN Table 5 (SPEC T5).

Append-only and flushed per row: it is the durable record, whatever happens to the process.
"""

from __future__ import annotations

import csv
import errno
import io
import os
from collections.abc import Iterable
from pathlib import Path

import torch

from chimera.callback.log.steps import Step

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


class StepLog:
    """Writes rows; on resume the rows past the resumed step are cut off first.

    Args:
        path: of the CSV file.
        lr: base rate; `learning_rate` is what the schedule makes of it at that step.
        resumed_step: optimiser steps already taken by the checkpoint resumed from.
    """

    def __init__(self, path: Path, lr: float, resumed_step: int = 0) -> None:
        self.path, self.lr = path, lr
        # Cut in place: rows that count are never anywhere but on disk, whenever we are killed.
        # Unbuffered: on a full disk a row is there or not, and nothing is left to fail at the end.
        self._file = path.open("r+b" if path.exists() else "w+b", buffering=0)
        self._end = _end_of(self._file.read(), resumed_step)
        self._file.truncate(self._end)
        self._file.seek(self._end)
        if not self._end:
            self._write(FIELDS)

    def __call__(self, step: Step) -> None:
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
                self.lr * step.factor,
                clipped,  # Table 5: the norm after clipping
                step.scaler_scale,
                torch.cuda.memory_allocated() / 1e9 if cuda else 0.0,
                torch.cuda.memory_reserved() / 1e9 if cuda else 0.0,
            )
        )

    def close(self) -> None:
        """Nothing is written after this."""
        self._file.close()

    def _write(self, row: Iterable[object]) -> None:
        line = io.StringIO()
        csv.writer(line).writerow(row)
        data = line.getvalue().encode()
        try:
            if self._file.write(data) != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
        except OSError:
            self._file.truncate(self._end)
            raise
        self._end += len(data)


def _end_of(data: bytes, step: int) -> int:
    """Where the row of a step ends; a last line torn by a kill is none."""
    head = (",".join(FIELDS) + "\r\n").encode()
    if step == 0 or not data.startswith(head):
        return 0
    end = len(head)
    for line in data[end:].splitlines(keepends=True):
        if not line.endswith(b"\n") or int(line.split(b",")[FIELDS.index("global_step")]) > step:
            break
        end += len(line)
    return end
