"""Progress of a run: a rich bar in a terminal, a line now and then elsewhere."""

from __future__ import annotations

import math
import time
from typing import Any, Literal

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Callback
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from chimera.callback.log.steps import Step

Style = Literal["auto", "bar", "lines", "none"]


class ProgressDisplay(Callback):
    """Shows loss, rate, tokens/s, the last validation and the time left. Listens to steps.

    Args:
        total: optimiser steps of the run.
        lr: base rate.
        style: `auto` draws a bar in a terminal and prints lines elsewhere.
        every: optimiser steps between two lines.
        console: where to; standard error, so that output can be piped.
    """

    def __init__(
        self, total: int, lr: float, style: Style, every: int, console: Console | None = None
    ) -> None:
        self.console = console or Console(stderr=True)
        terminal = self.console.is_terminal
        self.style = ("bar" if terminal else "lines") if style == "auto" else style
        self.total, self.lr, self.every = total, lr, every
        self._val = ""
        self._loss: float | None = None
        self._speed: float | None = None
        self._bar: Progress | None = None
        self._start, self._first = 0.0, 0

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._start, self._first = time.perf_counter(), trainer.global_step
        if self.style == "bar":
            self._bar = Progress(
                TextColumn("train"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[text]}"),
                TimeElapsedColumn(),
                TextColumn("left"),
                TimeRemainingColumn(),
                console=self.console,
            )
            self._bar.start()
            self._task = self._bar.add_task(
                "train", total=self.total, text="", completed=self._first
            )

    def __call__(self, step: Step) -> None:
        self._loss = _smooth(self._loss, step.loss)
        self._speed = _smooth(self._speed, step.tokens / step.seconds)
        text = (
            f"loss {self._loss:.3f}  lr {self.lr * step.factor:.2e}  {self._speed / 1e3:.1f}k tok/s"
            f"{self._val}"
        )
        if self._bar is not None:
            self._bar.update(self._task, completed=step.global_step, text=text)
        elif self.style == "lines" and step.global_step % self.every == 0:
            done = step.global_step - self._first
            left = (time.perf_counter() - self._start) / done * (self.total - step.global_step)
            self.console.print(
                f"step {step.global_step}/{self.total}  {text}  left {_clock(left)}",
                highlight=False,
            )

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        metrics = trainer.callback_metrics
        if "val/perplexity" in metrics:
            self._val = f"  val ppl {float(metrics['val/perplexity']):.1f}"

    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._stop()

    def on_exception(self, trainer: pl.Trainer, pl_module: Any, exception: BaseException) -> None:
        self._stop()

    def _stop(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def _smooth(old: float | None, new: float) -> float:
    if not math.isfinite(new):  # a step that was left out
        return new if old is None else old
    return new if old is None else 0.9 * old + 0.1 * new


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}"
