"""Validate every n optimiser steps, also where an epoch ends within an accumulation.

Lightning counts micro-batches, of which the last step of an epoch may have fewer than the others.
"""

from __future__ import annotations

from typing import Any, Literal

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Callback

from chimera.types import NonNegativeInt

#: A number of batches that no run reaches.
NEVER = 1 << 62


class ValidationSchedule(Callback):
    """Tells Lightning after each batch whether validation follows.

    Args:
        every: optimiser steps between validations, or `epoch`; 0 for none during training.
    """

    def __init__(self, *, every: NonNegativeInt | Literal["epoch"] = 0) -> None:
        self.every = every
        self.interval = 0  # in optimiser steps, known when training starts

    def due(self, step: int) -> bool:
        """Whether validation follows this optimiser step."""
        return bool(self.interval) and step > 0 and step % self.interval == 0

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        epoch = -(-int(trainer.num_training_batches) // trainer.accumulate_grad_batches)
        self.interval = min(epoch, trainer.max_steps) if self.every == "epoch" else self.every
        self._before = trainer.global_step
        self._set(trainer, self.due(trainer.global_step))

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        step = trainer.global_step
        due = step > self._before and self.due(step)
        self._before = step
        self._set(trainer, due)
        if trainer.should_stop and not due:
            trainer.limit_val_batches = 0  # a run that is asked to stop does not validate first

    def _set(self, trainer: pl.Trainer, due: bool) -> None:
        trainer.val_check_batch = 1 if due else NEVER
