"""Checkpoints that a crash cannot tear: written beside their target, then moved over it.

`last.ckpt` is what an interrupted run continues from, `best.ckpt` has the lowest validation loss.
"""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Callback


class Checkpoints(Callback):
    """Saves every `every` optimiser steps, at every validation and at the end.

    Args:
        folder: where to.
        every: optimiser steps between saves of `last.ckpt` (TITAN Table 4: 500).
        monitor: what `best.ckpt` is the lowest of; a NaN is never best.
    """

    def __init__(self, folder: Path, every: int = 500, monitor: str = "val/loss") -> None:
        self.folder, self.every, self.monitor = folder, every, monitor
        self.best = math.inf
        self.validations: list[tuple[int, float]] = []
        self._saved = -1

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best, "validations": [list(v) for v in self.validations]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.best = state_dict["best"]
        self.validations = [(step, loss) for step, loss in state_dict["validations"]]

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        step = trainer.global_step
        stopping = trainer.should_stop and step < trainer.max_steps
        if step != self._saved and step and (stopping or step % self.every == 0):
            self.save(trainer, "last")

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.state.fn != "fit" or trainer.sanity_checking:
            return
        loss = float(trainer.callback_metrics[self.monitor])
        self.validations.append((trainer.global_step, loss))
        if loss < self.best:
            self.best = loss
            self.save(trainer, "best")

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.global_step != self._saved:
            self.save(trainer, "last")

    def save(self, trainer: pl.Trainer, name: str) -> None:
        """Write `<name>.ckpt` whole or not at all."""
        target = self.folder / f"{name}.ckpt"
        temporary = self.folder / f".{name}.ckpt.{os.getpid()}"
        trainer.save_checkpoint(temporary)
        if trainer.is_global_zero:
            os.replace(temporary, target)
        if name == "last":
            self._saved = trainer.global_step
