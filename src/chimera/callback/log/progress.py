"""Progress of a run: Lightning's rich bar in a terminal, a line every n-th step elsewhere."""

from __future__ import annotations

import time
from collections import deque
from typing import Any, Literal

import lightning.pytorch as pl
from lightning.pytorch.callbacks import RichProgressBar
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    ProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Column

from chimera.callback.log.steps import Step, mean_loss
from chimera.types import PositiveInt

#: Columns of a terminal that also has room for the last validation.
WIDE = 100
#: Columns below which the learning rate is left out, so that step, loss, speed and time left stay.
NARROW = 76


class Progress(RichProgressBar):
    """Shows step, loss, learning rate, tokens/s, the last validation and the time left.

    The loss is the mean of the last `every` steps, as loggers have it under `train/loss`.

    One bar counts the optimiser steps of the whole run; validation and test have bars of their own
    while they last. All goes to standard error, so that output can be piped.

    Args:
        style: `auto` draws a bar in a terminal and prints lines elsewhere.
        every: optimiser steps between two lines, and of a mean.
    """

    validation_description = "valid"
    test_description = "test"

    def __init__(
        self, *, style: Literal["auto", "bar", "lines", "none"] = "auto", every: PositiveInt = 10
    ) -> None:
        super().__init__(refresh_rate=4, console_kwargs={"stderr": True})
        self.out = Console(stderr=True)  # for lines; the bar has a console of its own
        self.style = style
        self.every = every
        self._total = self._first = 0
        self._start = 0.0
        self._recent = deque[Step](maxlen=every)
        self._validation = ""

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        super().setup(trainer, pl_module, stage)
        if self.style == "auto":
            self.style = "bar" if self.out.is_terminal else "lines"
        if self.style != "bar":
            self.disable()
        if not trainer.is_global_zero:
            self.style = "none"

    def configure_columns(self, trainer: pl.Trainer) -> list[ProgressColumn]:
        return [
            TextColumn("{task.description}", table_column=Column(no_wrap=True)),
            BarColumn(bar_width=None),  # the one that gives way in a narrow terminal
            MofNCompleteColumn(table_column=Column(no_wrap=True)),
            TimeRemainingColumn(compact=True, table_column=Column(no_wrap=True)),
        ]

    def get_metrics(self, *_: Any) -> dict[str, Any]:
        """Nothing for Lightning's own column, which would wrap in a narrow terminal."""
        return {}

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        super().on_train_start(trainer, pl_module)
        self._total = trainer.max_steps
        self._start = time.perf_counter()
        self._first = trainer.global_step
        if self.progress is not None:
            bar = self._add_task(self._total, "train")
            self.progress.update(bar, completed=self._first)
            self.train_progress_bar_id = bar

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """The bar counts the whole run; an epoch changes nothing."""

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        self._update(self.train_progress_bar_id, trainer.global_step)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        super().on_validation_end(trainer, pl_module)
        metrics = trainer.callback_metrics
        if "val/perplexity" in metrics:
            self._validation = f"  val ppl {float(metrics['val/perplexity']):.1f}"

    def on_step(self, step: Step) -> None:
        self._recent.append(step)
        drawn = self.progress
        if drawn is None and (self.style != "lines" or step.global_step % self.every):
            return
        rate = sum(s.tokens for s in self._recent) / sum(s.seconds for s in self._recent)
        loss = f"mean loss {mean_loss(self._recent):.3f}"
        speed = f"{rate / 1e3:.1f}k tok/s"
        text = f"{loss}  lr {step.lr:.2e}  {speed}"
        if drawn is not None and self.train_progress_bar_id is not None:
            width = drawn.console.width
            shown = text + self._validation if width >= WIDE else text
            if width < NARROW:
                shown = f"{loss}  {speed}"
            drawn.update(self.train_progress_bar_id, description=shown)
        else:
            taken = time.perf_counter() - self._start
            left = taken / (step.global_step - self._first) * (self._total - step.global_step)
            head = f"step {step.global_step}/{self._total}"
            line = f"{head}  {text}{self._validation}  left {_clock(left)}"
            self.out.print(line, highlight=False, soft_wrap=True)  # one line in a file, too


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}"
