"""Checkpoints in tiers (SPEC T4; TITAN Table 4), one write a step at most.

rolling-<step>  every n steps, the newest few; `last.ckpt` is a link to the newest
best-<step>     the few with the lowest validation loss; `best.ckpt` is a link to the best
epoch-<n>       at the end of each epoch
emergency       when a step fails: the state of before it

A step is saved when all that belongs to it is done, its validation too, and several tiers that want
the same step share one file on disk.
"""

from __future__ import annotations

import math
import os
import time
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Callback

from chimera.callback.state.step_snapshot import Boundary
from chimera.callback.state.validation import ValidationSchedule
from chimera.config.settings import Trainer as Settings
from chimera.errors import NotFiniteError
from chimera.rundir import checkpoints as files
from chimera.rundir.checkpoint_io import finite


class Checkpoints(Callback):
    """Writes the tiers and keeps the list of validations. What is in the folder counts, on resume.

    Args:
        folder: where to.
        settings: how often, how many.
        schedule: of the validations.
        boundary: knows the state of before the step under way.
        monitor: what the best ones are best in; NaN is never best.
        better: whether that is where it is lower or higher.
    """

    def __init__(
        self,
        folder: Path,
        settings: Settings,
        schedule: ValidationSchedule,
        boundary: Boundary,
        monitor: str = "val/loss",
        better: str = "lower",
    ) -> None:
        self.folder, self.settings, self.monitor = folder, settings, monitor
        self._sign = {"lower": 1.0, "higher": -1.0}[better]
        self.schedule, self.boundary = schedule, boundary
        self.validations: list[tuple[int, float]] = []
        self.scores: list[tuple[int, float]] = []  # by what they are monitored, if not by loss
        self.stalls: list[float] = []
        self._step = -1
        self._facts: dict[str, Any] = {}

    @property
    def best(self) -> Path | None:
        """The best one's file, if there was a validation."""
        found = files.best(self.folder)
        return found[0][1] if found else None

    def state_dict(self) -> dict[str, Any]:
        return {
            "validations": [list(v) for v in self.validations],
            "scores": [list(s) for s in self.scores],
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.validations = [(step, loss) for step, loss in state_dict["validations"]]
        self.scores = [(step, score) for step, score in state_dict.get("scores", [])]

    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        checkpoint["chimera"] = self._facts

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._step = trainer.global_step

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        step = trainer.global_step
        if step > self._step and not self.schedule.due(step):
            self._finish(trainer)
        self._step = step

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.state.fn != "fit" or trainer.sanity_checking:
            return
        found = trainer.callback_metrics
        self.validations.append((trainer.global_step, float(found["val/loss"])))
        if self.monitor != "val/loss":
            self.scores.append((trainer.global_step, float(found[self.monitor])))
        # Kept as a loss, whatever it is: the lowest is best.
        self._finish(trainer, self._sign * float(found[self.monitor]))

    def on_exception(self, trainer: pl.Trainer, pl_module: Any, exception: BaseException) -> None:
        # A full disk has no room for it; a second Ctrl-C does not want to wait for it. What is not
        # finite has been saved by its guard, before the batch was lost.
        mine = isinstance(exception, OSError | NotFiniteError)
        if isinstance(exception, Exception) and not mine:
            self.emergency(trainer)

    def emergency(self, trainer: pl.Trainer, name: str = "emergency", **facts: Any) -> Path | None:
        """The state of before the step that failed, unless that one is there or is gone."""
        target = self.folder / f"{name}.ckpt"
        if trainer.state.fn != "fit" or not self.boundary.intact(trainer):
            return None
        self._facts = {"resumable": True, **facts}
        began = time.perf_counter()
        self.boundary.save(trainer, target)
        self.stalls.append(time.perf_counter() - began)
        return target

    def rescue(self) -> None:
        """Where the weights in memory are broken, the emergency one is the newest that is not."""
        found = files.newest(self.folder)
        while found.path and not finite(found.path):
            os.replace(found.path, found.path.with_name(f"{found.path.name}.invalid"))
            files.remove(found.path)
            found = files.newest(self.folder)
        if found.path:
            files.publish(found.path, self.folder / "emergency.ckpt", files.facts(found.path))

    def _finish(self, trainer: pl.Trainer, loss: float | None = None) -> None:
        """Save the step that is done under all names that it has earned."""
        step, want = trainer.global_step, self.settings
        stopping = trainer.should_stop and step < trainer.max_steps
        names = []
        if stopping or step % want.checkpoint_every_n_steps == 0 or step == trainer.max_steps:
            names.append(f"rolling-{step}")
        if loss is not None and self._among_best(loss):
            names.append(f"best-{step}")
        ended = trainer.fit_loop.epoch_loop.batch_progress.is_last_batch
        if ended and want.checkpoint_keep_epochs != 0:
            names.append(f"epoch-{trainer.current_epoch}")
        if names:
            self._save(trainer, names, loss)

    def _save(self, trainer: pl.Trainer, names: list[str], loss: float | None) -> None:
        began = time.perf_counter()
        self._facts = {"loss": loss}
        first, *others = (self.folder / f"{name}.ckpt" for name in names)
        trainer.save_checkpoint(first)
        if trainer.is_global_zero:
            for other in others:
                files.publish(first, other, files.facts(first))
            self._prune()
        self.stalls.append(time.perf_counter() - began)

    def _among_best(self, loss: float) -> bool:
        best, most = files.best(self.folder), self.settings.checkpoint_keep_best
        return math.isfinite(loss) and (len(best) < most or (most > 0 and loss < best[most - 1][0]))

    def _prune(self) -> None:
        """Keep of each tier what its setting says, and the links right."""
        want = self.settings
        rolling, epochs = files.tier(self.folder, "rolling"), files.tier(self.folder, "epoch")
        best = [path for _, path in files.best(self.folder)]
        if rolling:
            files.point(self.folder / "last.ckpt", rolling[-1])
        if best:
            files.point(self.folder / "best.ckpt", best[0])
        surplus = rolling[: -want.checkpoint_keep] + best[want.checkpoint_keep_best :]
        if want.checkpoint_keep_epochs:
            surplus += epochs[: -want.checkpoint_keep_epochs]
        for path in surplus:
            files.remove(path)
