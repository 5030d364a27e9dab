"""When a run validates, and when it stops: every n steps, on a signal, at a time limit.

Lightning counts micro-batches, of which the last step of an epoch may have fewer than the others.
So validation is due by optimiser steps, and a stop comes after a whole step.
"""

from __future__ import annotations

import signal
from types import FrameType
from typing import Any, Literal

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Callback

from chimera.callback import find
from chimera.callback.log.steps import Step, Steps
from chimera.ops import reduce
from chimera.program import stop_signals
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


class GracefulStop(Callback):
    """Turns the first signal into `trainer.should_stop`; the second one has its usual effect."""

    def __init__(self) -> None:
        self.caught: int | None = None
        self.stopping = False  # also where another process has caught the signal
        self._before: dict[int, Any] = {}

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        # Not earlier: Lightning sets a SIGTERM handler of its own, which ends with exit code 0.
        self._before = {number: signal.signal(number, self._catch) for number in stop_signals()}
        self._trainer = trainer

    def on_step(self, step: Step) -> None:
        """Stop after a whole step: a stop between micro-batches would lose the accumulated ones."""
        # A signal reaches the processes of a run at different steps, or only one of them.
        if reduce.any_of(self.caught is not None):
            self.stopping = True
            _stop(self._trainer)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._restore()

    def on_exception(self, trainer: pl.Trainer, pl_module: Any, exception: BaseException) -> None:
        self._restore()

    def _catch(self, number: int, frame: FrameType | None) -> None:
        self.caught = number
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}


class TimeLimit(Callback):
    """Stops a run after the step in which its wall time passes a limit (`trainer.max_time`).

    Args:
        limit: DD:HH:MM:SS, of the run over all its resumptions; null for none.
    """

    def __init__(self, *, limit: str | None = None) -> None:
        self.seconds: int | None = None
        if limit is not None:
            days, hours, minutes, seconds = map(int, limit.split(":"))
            self.seconds = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
        self.reached = False

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._trainer = trainer

    def on_step(self, step: Step) -> None:
        """Stop after the step in which the limit passes."""
        if self.seconds is None:
            return
        if reduce.any_of(find(self._trainer, Steps).wall_seconds >= self.seconds):
            self.reached = True
            _stop(self._trainer)


def _stop(trainer: pl.Trainer) -> None:
    """End the fit now, also before `min_steps` or `min_epochs`."""
    trainer.should_stop = True
    trainer.fit_loop.min_epochs = trainer.fit_loop.epoch_loop.min_steps = None


class Until(Callback):
    """Stops after an optimiser step; `max_steps`, which the schedules depend on, stays as it is."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        if trainer.global_step >= self.step:
            trainer.should_stop = True
