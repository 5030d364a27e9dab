"""Checkpoints in tiers (SPEC T4; TITAN Table 4), at most one write a step.

rolling-<step>  every n steps, the newest few; `last.ckpt` is a link to the newest
best-<step>     the few with the lowest validation loss; `best.ckpt` is a link to the best
epoch-<n>       at the end of each epoch
emergency       when a step fails: the state before it

A step is saved after its validation, if one is due. Tiers that want the same step share one file on
disk. The state before a step is a snapshot of buffers that a forward pass changes, the counts of
the loops and the loader, and the callbacks' states. Weights need no copy: nothing changes them
before the update.
"""

from __future__ import annotations

import copy
import math
import os
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.trainer.call import _call_callbacks_state_dict
from torch import Tensor

from chimera.callback import find
from chimera.callback.state.loop_control import ValidationSchedule
from chimera.errors import NotFiniteError
from chimera.ops import reduce
from chimera.rundir import checkpoints as files
from chimera.rundir.checkpoint_io import finite
from chimera.rundir.directory import RunDir
from chimera.safe_io import write_json
from chimera.types import NonNegativeInt, PositiveInt


class Checkpoints(Callback):
    """Writes the tiers and keeps the list of validations. On resume the files in the folder count.

    The best checkpoints are those with the lowest `val/loss`, or with the metric that the task
    names as `monitor` and prefers `higher` or `lower` (its `better`). NaN is never best.

    Args:
        every_n_steps: optimiser steps between rolling checkpoints.
        keep: rolling ones that are kept.
        keep_best: best ones that are kept.
        keep_epochs: those from ends of epochs that are kept; null keeps all.
    """

    def __init__(
        self,
        *,
        every_n_steps: PositiveInt = 500,
        keep: PositiveInt = 3,
        keep_best: NonNegativeInt = 2,
        keep_epochs: NonNegativeInt | None = None,
    ) -> None:
        self.every_n_steps = every_n_steps
        self.keep = keep
        self.keep_best = keep_best
        self.keep_epochs = keep_epochs
        self.validations: list[tuple[int, float]] = []
        self.scores: list[tuple[int, float]] = []  # of the monitored metric, if it is not the loss
        self._step = -1
        self._facts: dict[str, Any] = {}

    def setup(self, trainer: pl.Trainer, pl_module: Any, stage: str) -> None:
        self.folder = RunDir(Path(trainer.default_root_dir)).checkpoints
        self.monitor = getattr(pl_module, "monitor", "val/loss")
        self._better = getattr(pl_module, "better", "lower")
        self._sign = {"lower": 1.0, "higher": -1.0}[self._better]
        self.schedule = find(trainer, ValidationSchedule)

    def state_dict(self) -> dict[str, Any]:
        return {
            "validations": [list(v) for v in self.validations],
            "scores": [list(s) for s in self.scores],
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.validations = [(step, loss) for step, loss in state_dict["validations"]]
        self.scores = [(step, score) for step, score in state_dict["scores"]]

    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        checkpoint["chimera"] = self._facts

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._step = trainer.global_step

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        step = trainer.global_step
        if step > self._step and not self.schedule.due(step):
            self._finish(trainer)
        self._step = step

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.state.fn != "fit" or trainer.sanity_checking:
            return
        metrics = trainer.callback_metrics
        self.validations.append((trainer.global_step, float(metrics["val/loss"])))
        if self.monitor != "val/loss":
            self.scores.append((trainer.global_step, float(metrics[self.monitor])))
        if trainer.is_global_zero:
            values = self.validations if self.monitor == "val/loss" else self.scores
            report = {"monitor": self.monitor, "better": self._better, "values": values}
            write_json(self.folder.parent / "validations.json", report)
        # Kept as a loss, whatever it is: the lowest is best.
        self._finish(trainer, self._sign * float(metrics[self.monitor]))

    def on_exception(self, trainer: pl.Trainer, pl_module: Any, exception: BaseException) -> None:
        # A full disk has no room for it; a second Ctrl-C does not want to wait for it. A step that
        # is not finite has been saved by the guard, before the batch was lost.
        done = isinstance(exception, OSError | NotFiniteError)
        if isinstance(exception, Exception) and not done:
            self.emergency(trainer, together=trainer.world_size == 1)

    def emergency(
        self, trainer: pl.Trainer, name: str = "emergency", *, together: bool = True, **facts: Any
    ) -> Path | None:
        """Save the state before the failed step; None where it cannot be restored.

        Args:
            trainer: whose step has failed.
            name: of the checkpoint.
            together: all processes save; else this one alone, for another may be gone.
            facts: for the sidecar.
        """
        snapshot = find(trainer, StepSnapshot)
        if trainer.state.fn != "fit" or not snapshot.intact(trainer):
            return None
        target = self.folder / f"{name}.ckpt"
        self._facts = {"resumable": True, **facts}
        return target if snapshot.save(trainer, target, together=together) else None

    def rescue(self) -> None:
        """Publish the newest finite checkpoint as `emergency`: the weights in memory are broken.

        The first process does so for all.
        """
        newest = files.newest(self.folder)
        while newest.path and not finite(newest.path):
            os.replace(newest.path, newest.path.with_name(f"{newest.path.name}.invalid"))
            files.remove(newest.path)
            newest = files.newest(self.folder)
        if newest.path:
            files.publish(newest.path, self.folder / "emergency.ckpt")

    def _finish(self, trainer: pl.Trainer, loss: float | None = None) -> None:
        """Save the finished step under the name of every tier that wants it."""
        step = trainer.global_step
        stopping = trainer.should_stop and step < trainer.max_steps
        names = []
        if stopping or step % self.every_n_steps == 0 or step == trainer.max_steps:
            names.append(f"rolling-{step}")
        best = trainer.is_global_zero and loss is not None and self._among_best(loss)
        if reduce.any_of(best):  # all save, since each may have a shard
            names.append(f"best-{step}")
        ended = trainer.fit_loop.epoch_loop.batch_progress.is_last_batch
        if ended and self.keep_epochs != 0:
            names.append(f"epoch-{trainer.current_epoch}")
        if names:
            self._save(trainer, names, loss)

    def _save(self, trainer: pl.Trainer, names: list[str], loss: float | None) -> None:
        self._facts = {"loss": loss}
        first, *others = (self.folder / f"{name}.ckpt" for name in names)
        trainer.save_checkpoint(first)
        if trainer.is_global_zero:
            for other in others:
                files.publish(first, other)
            self._prune()

    def _among_best(self, loss: float) -> bool:
        best = files.best(self.folder)
        most = self.keep_best
        return math.isfinite(loss) and (len(best) < most or (most > 0 and loss < best[most - 1][0]))

    def _prune(self) -> None:
        """Delete what a tier has too many of, and update the links."""
        rolling = files.tier(self.folder, "rolling")
        epochs = files.tier(self.folder, "epoch")
        best = [path for _, path in files.best(self.folder)]
        if rolling:
            files.link(self.folder / "last.ckpt", rolling[-1])
        if best:
            files.link(self.folder / "best.ckpt", best[0])
        surplus = rolling[: -self.keep] + best[self.keep_best :]
        if self.keep_epochs:
            surplus += epochs[: -self.keep_epochs]
        for path in surplus:
            files.remove(path)


class StepSnapshot(Callback):
    """Takes the snapshot. Has to be the last callback: it records what the others leave."""

    def __init__(self) -> None:
        self.step = -1
        self.updating = False  # between the check of the gradients and the end of the batch
        self._inside = self._rewinding = False
        self._loop: dict[str, Any] = {}
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
            checkpoint["loops"]["fit_loop"] = self._loop
            checkpoint["callbacks"] = self._callbacks

    def _take(self, trainer: pl.Trainer) -> None:
        self._loop = trainer.fit_loop.state_dict()
        # What Lightning itself puts into a checkpoint; it offers no public way to this alone.
        self._callbacks = copy.deepcopy(_call_callbacks_state_dict(trainer))
        self.step = trainer.global_step
        self._inside = self.updating = False


def _saves_alone(trainer: pl.Trainer) -> bool:
    """Whether this process saves what all have, when others may be gone."""
    if getattr(trainer.strategy, "sharded", False) or trainer.global_rank > 1:
        return False
    return trainer.is_global_zero or RunDir(Path(trainer.default_root_dir)).first_is_gone()
