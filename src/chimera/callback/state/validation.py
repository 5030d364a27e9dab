"""Validation every n optimiser steps, also where epochs end within an accumulation.

Lightning counts micro-batches, of which the last step of an epoch may have fewer than the others.
"""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Callback

NEVER = 1 << 62


class ValidationSchedule(Callback):
    """Tells Lightning after each batch whether validation follows.

    Args:
        every: optimiser steps; 0 for never during training.
    """

    def __init__(self, every: int) -> None:
        self.every = every

    def due(self, step: int) -> bool:
        """Whether validation follows this optimiser step."""
        return bool(self.every) and step > 0 and step % self.every == 0

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
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
            trainer.limit_val_batches = 0  # who asks a run to stop does not want to wait for more

    def _set(self, trainer: pl.Trainer, due: bool) -> None:
        trainer.val_check_batch = 1 if due else NEVER
