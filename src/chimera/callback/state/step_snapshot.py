"""Snapshot of the state between two optimiser steps, from which a failed step is undone.

It holds buffers that a forward pass changes, the counts of the loops and the loader, and the
callbacks' states. Weights need no copy: nothing changes them before the update.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.trainer.call import _call_callbacks_state_dict
from torch import Tensor

from chimera.rundir.directory import RunDir


class StepSnapshot(Callback):
    """Takes the snapshot. Has to be the last callback: it records what the others leave."""

    def __init__(self) -> None:
        self.step = -1
        self.updating = False  # between the check of the gradients and the end of the batch
        self._inside = self._rewinding = False
        self._loops: dict[str, Any] = {}
        self._callbacks: dict[str, Any] = {}
        self._live: list[Tensor] = []
        self._kept: list[Tensor] = []

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._live = [b for b in pl_module.buffers() if b.numel()]
        self._kept = [b.clone() for b in self._live]
        self._take(trainer)

    def on_train_batch_start(self, *_: Any) -> None:
        if not self._inside:
            if self._live:
                torch._foreach_copy_(self._kept, self._live)
            self._inside = True

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        if trainer.global_step > self.step:
            self._take(trainer)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.state.fn == "fit" and trainer.global_step == self.step and not self._inside:
            self._take(trainer)

    def intact(self, trainer: pl.Trainer) -> bool:
        """Whether the snapshot and the weights in memory are the state after a whole step."""
        return trainer.global_step == self.step and not self.updating and not trainer.validating

    def restore_buffers(self) -> None:
        """Undo the changes that the forward passes of the current step made to buffers."""
        if self._inside and self._live:
            torch._foreach_copy_(self._live, self._kept)

    def save(self, trainer: pl.Trainer, path: Path, *, together: bool = True) -> bool:
        """Write a checkpoint of the state before the current step.

        Args:
            trainer: of the run.
            path: of the checkpoint.
            together: all processes are here. If not, one saves what it has by itself, the first or,
                when that is gone, the second. Shards of weights are no state, and are not saved.

        Returns:
            Whether it was written.
        """
        if not together and not _saves_alone(trainer):
            return False
        self.restore_buffers()
        self._rewinding = True
        try:
            if together:
                trainer.save_checkpoint(path)
            else:  # what the trainer does, without its barrier
                state = trainer._checkpoint_connector.dump_checkpoint(weights_only=False)
                trainer.strategy.checkpoint_io.save_checkpoint(state, path)
        finally:
            self._rewinding = False
        return True

    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        if self._rewinding and self.intact(trainer):
            checkpoint["loops"] = self._loops
            checkpoint["callbacks"] = self._callbacks

    def _take(self, trainer: pl.Trainer) -> None:
        # What Lightning itself puts into a checkpoint; it offers no public way to these two alone.
        connector = trainer._checkpoint_connector
        self._loops = copy.deepcopy(connector._get_loops_state_dict())
        self._callbacks = copy.deepcopy(_call_callbacks_state_dict(trainer))
        self.step = trainer.global_step
        self._inside = self.updating = False


def _saves_alone(trainer: pl.Trainer) -> bool:
    """Whether this process saves what all have, when others may be gone."""
    if getattr(trainer.strategy, "sharded", False) or trainer.global_rank > 1:
        return False
    return trainer.is_global_zero or RunDir(Path(trainer.default_root_dir)).first_is_gone()
