"""A callback that plants a fault into one process of a run, once."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Callback

from tests.torture import faults


class Fault(Callback):
    """Acts before a step, if its marker file is not there yet.

    Args:
        kind: kill (SIGKILL), term (SIGTERM), stall (SIGSTOP), raise, poison (a loss of NaN), or
            full (no room for the next checkpoint).
        rank: of the process.
        step: optimiser steps taken before.
        marker: file that is made when the fault happens.
    """

    def __init__(self, *, kind: str, rank: int, step: int, marker: str) -> None:
        self.kind, self.rank, self.step, self.marker = kind, rank, step, Path(marker)

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        here = trainer.global_step == self.step and trainer.global_rank == self.rank
        if not here or self.marker.exists():
            return
        self.marker.touch()
        if self.kind == "raise":
            raise RuntimeError("planted")
        if self.kind == "poison":
            whole = pl_module.total_loss
            pl_module.total_loss = lambda *given: _once(pl_module, whole, given)
        elif self.kind == "full":
            faults.full_at("checkpoint", 1)
        else:
            names = {"kill": signal.SIGKILL, "term": signal.SIGTERM, "stall": signal.SIGSTOP}
            os.kill(os.getpid(), names[self.kind])


def _once(task: Any, whole: Any, given: Any) -> Any:
    """A loss of NaN, and the task's own from then on."""
    task.total_loss = whole
    return whole(given[0] * float("nan"), *given[1:])
