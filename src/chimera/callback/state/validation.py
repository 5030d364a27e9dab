"""Validate every n optimiser steps, also where an epoch ends within an accumulation.

Lightning counts micro-batches, of which the last step of an epoch may have fewer than the others.
"""

from __future__ import annotations

from typing import Any, Literal

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Callback

from chimera.types import NonNegativeInt, PositiveInt

#: A number of batches that no run reaches.
NEVER = 1 << 62


class ValidationSchedule(Callback):
    """Tells Lightning after each batch whether validation follows.

    Args:
        every: optimiser steps between validations, a share of an epoch (a float), or `epoch`; 0 for
            none during training.
        epochs: validate after so many epochs instead; null leaves it to `every`.
    """

    def __init__(
        self,
        *,
        every: NonNegativeInt | float | Literal["epoch"] = 0,
        epochs: PositiveInt | None = None,
    ) -> None:
        self.every = every
        self.epochs = epochs
        self.interval = 0  # in optimiser steps, known when training starts

    def due(self, step: int) -> bool:
        """Whether validation follows this optimiser step."""
        return bool(self.interval) and step > 0 and step % self.interval == 0

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        epoch = -(-int(trainer.num_training_batches) // trainer.accumulate_grad_batches)
        self.interval = self._steps(epoch, trainer.max_steps)
        self._before = trainer.global_step
        self._set(trainer, self.due(trainer.global_step))

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        step = trainer.global_step
        due = step > self._before and self.due(step)
        self._before = step
        self._set(trainer, due)
        if trainer.should_stop and not due:
            trainer.limit_val_batches = 0  # a run that is asked to stop does not validate first

    def _steps(self, epoch: int, total: int) -> int:
        """Optimiser steps between validations; an epoch has `epoch` of them, the run `total`."""
        if self.epochs:
            return self.epochs * epoch
        if self.every == "epoch":
            return min(epoch, total)
        return max(1, int(epoch * self.every)) if isinstance(self.every, float) else self.every

    def _set(self, trainer: pl.Trainer, due: bool) -> None:
        trainer.val_check_batch = 1 if due else NEVER
