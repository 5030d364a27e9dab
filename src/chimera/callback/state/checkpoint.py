"""Checkpoints in tiers (SPEC T4; TITAN Table 4), at most one write a step.

rolling-<step>  every n steps, the newest few; `last.ckpt` is a link to the newest
best-<step>     the few with the lowest validation loss; `best.ckpt` is a link to the best
epoch-<n>       at the end of each epoch
emergency       when a step fails: the state before it

A step is saved after its validation, if one is due. Tiers that want the same step share one file on
disk.
"""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Callback

from chimera.callback.lookup import find
from chimera.callback.state.step_snapshot import StepSnapshot
from chimera.callback.state.validation import ValidationSchedule
from chimera.errors import NotFiniteError
from chimera.ops import reduce
from chimera.rundir import checkpoints as files
from chimera.rundir.checkpoint_io import finite
from chimera.rundir.directory import RunDir
from chimera.rundir.safe_io import write_json
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
