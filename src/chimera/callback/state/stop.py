"""Stop a run after its current step on Ctrl-C or SIGTERM, saved, to be resumed later."""

from __future__ import annotations

import signal
from types import FrameType
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Callback

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class GracefulStop(Callback):
    """Turns the first signal into `trainer.should_stop`; the second one has its usual effect."""

    def __init__(self) -> None:
        self.caught: int | None = None
        self._before: dict[int, Any] = {}

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        # Not earlier: Lightning sets a SIGTERM handler of its own, which ends with exit code 0.
        self._before = {number: signal.signal(number, self._catch) for number in SIGNALS}

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        # A stop between micro-batches would lose the accumulated ones: it waits for the step.
        self._step = trainer.global_step

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self.caught is not None and trainer.global_step > self._step:
            trainer.should_stop = True

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


class Until(Callback):
    """Stops after an optimiser step; `max_steps`, which the schedules depend on, stays as it is."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if trainer.global_step >= self.step:
            trainer.should_stop = True
