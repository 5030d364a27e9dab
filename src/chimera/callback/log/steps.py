"""One record per optimiser step, made of its micro-batches, and steps.csv, which has a row of each.

The step log, the metrics and the progress display all read it, so each number is computed once.
"""

from __future__ import annotations

import csv
import errno
import io
import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback
from torch import Tensor

from chimera.callback import with_method
from chimera.ops import reduce
from chimera.rundir.directory import RunDir
from chimera.rundir.steps import header, move_aside


@dataclass(frozen=True)
class Step:
    """Numbers of one optimiser step. Losses and accuracy are means over its predictions.

    Args:
        epoch: from 0.
        step: optimiser steps taken in this epoch, from 1.
        global_step: optimiser steps taken in this run, from 1.
        loss: of the task, without auxiliary losses.
        accuracy: of the task.
        lr: base learning rate at this step: optim.lr times the schedule's factor.
        rates: learning rate at this step by optimiser group.
        grad_norm: L2 norm of all gradients before clipping.
        clip: largest norm that clipping leaves; 0 for no clipping, or clipping by value.
        scaler_scale: of the fp16 gradient scaler; 1 without one.
        tokens: real tokens of the step.
        seconds: wall time since the last step, validation left out.
        aux, stats: as the model returned them, means over the micro-batches.
    """

    epoch: int
    step: int
    global_step: int
    loss: float
    accuracy: float
    lr: float
    rates: dict[str, float]
    grad_norm: float
    clip: float
    scaler_scale: float
    tokens: int
    seconds: float
    aux: dict[str, float] = field(default_factory=dict)
    stats: dict[str, float] = field(default_factory=dict)
    timestamp: str = field(default_factory=lambda: datetime.now(UTC).isoformat())


class Steps(Callback):
    """Makes the record of each optimiser step and calls `on_step(step)` of every callback with one.

    Keeps the wall time of the run, over all the processes that it takes. It counts from the
    construction: make it first.
    """

    def __init__(self) -> None:
        self.last: Step | None = None  # of which all listeners know
        self.tokens = 0
        self.seconds = 0.0
        self._listeners: list[Any] = []
        self._micro: list[dict[str, Any]] = []
        self._tokens = 0
        self._clock = self._paused = 0.0
        self._began = time.perf_counter()
        self._wall_before = 0.0
        self._warm = False

    @property
    def tokens_per_second(self) -> float:
        """Without validation and the first step of each process; NaN until there is a second."""
        return self.tokens / self.seconds if self.seconds else math.nan

    @property
    def wall_seconds(self) -> float:
        """Of this process, and of those before it up to the checkpoint resumed from."""
        return self._wall_before + time.perf_counter() - self._began

    def state_dict(self) -> dict[str, float]:
        return {"tokens": self.tokens, "seconds": self.seconds, "wall": self.wall_seconds}

    def load_state_dict(self, state_dict: dict[str, float]) -> None:
        self.tokens = int(state_dict["tokens"])
        self.seconds = state_dict["seconds"]
        self._wall_before = state_dict["wall"]

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        self._listeners = with_method(trainer, "on_step")
        log_at_global_step(trainer)

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._clock = time.perf_counter()
        # A checkpoint is saved before Lightning counts its last step.
        trainer.fit_loop.epoch_loop._batches_that_stepped = trainer.global_step

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._paused = time.perf_counter()

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._clock += time.perf_counter() - self._paused

    def on_train_batch_start(self, trainer: pl.Trainer, *_: Any) -> None:
        self._before = trainer.global_step
        # The schedule changes the rates right after the step: read them before.
        self._rates = {g["name"]: float(g["lr"]) for g in trainer.optimizers[0].param_groups}

    def on_train_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        self._micro.append(outputs)
        mask = batch.get("mask")
        self._tokens += batch["ids"].numel() if mask is None else int(mask.sum())
        if trainer.global_step == self._before:
            return
        now = time.perf_counter()
        step = self._finish(trainer, pl_module, batch_idx, now - self._clock)
        # The first step warms caches and allocators up; it would make short runs look slow.
        if self._warm:
            self.tokens += step.tokens
            self.seconds += step.seconds
        self._warm = True
        self._clock = now
        self._tokens = 0
        self._micro.clear()
        for listener in self._listeners:
            listener.on_step(step)
        self.last = step

    def _finish(self, trainer: pl.Trainer, task: Any, batch_idx: int, seconds: float) -> Step:
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        by_value = trainer.gradient_clip_algorithm == "value"
        means, tokens = self._of_all()
        return Step(
            epoch=trainer.current_epoch,
            step=-(-(batch_idx + 1) // trainer.accumulate_grad_batches),
            global_step=trainer.global_step,
            loss=means.pop("loss"),
            accuracy=means.pop("accuracy"),
            lr=task.optim.lr * _factor(trainer, self._rates),
            rates=self._rates,
            grad_norm=task.grad_norm,
            clip=0.0 if by_value else float(trainer.gradient_clip_val or 0.0),
            scaler_scale=float(scaler.get_scale()) if scaler is not None else 1.0,
            tokens=tokens,
            seconds=seconds,
            aux={key[4:]: value for key, value in means.items() if key.startswith("aux/")},
            stats={key[6:]: value for key, value in means.items() if key.startswith("stats/")},
        )

    def _of_all(self) -> tuple[dict[str, float], int]:
        """Means over the predictions of the step, and its tokens, of all processes."""
        pairs: dict[str, list[tuple[Tensor, Any]]] = {}
        for output in self._micro:
            values = {"loss": output["task_loss"], "accuracy": output["accuracy"]}
            for part in ("aux", "stats"):
                values |= {f"{part}/{key}": value for key, value in output[part].items()}
            for name, value in values.items():
                pairs.setdefault(name, []).append((value, output.get("count", 1.0)))
        means = {name: _mean(each) for name, each in pairs.items()}
        if reduce.participants() == 1:
            return means, self._tokens
        count = sum(float(count) for _, count in pairs["loss"])
        weighted = [value * count for value in means.values()]
        *sums, counts, tokens = reduce.totals([*weighted, count, self._tokens])
        return dict(zip(means, (value / (counts or 1) for value in sums), strict=True)), int(tokens)


def log_at_global_step(trainer: pl.Trainer) -> None:
    """Let all that is logged through Lightning have the number of optimiser steps taken.

    Lightning counts a step after its validation: it would log that one step early.
    """
    connector = trainer._logger_connector

    def log_metrics(metrics: dict[str, Any], step: int | None = None) -> None:
        point = metrics and {"epoch": float(trainer.current_epoch), **metrics}
        of_class(connector, point, trainer.global_step if step is None else step)

    of_class = type(connector).log_metrics
    connector.log_metrics = log_metrics  # type: ignore[method-assign]


def _factor(trainer: pl.Trainer, rates: dict[str, float]) -> float:
    """Of the schedule at this step, 1 at its peak."""
    first = trainer.optimizers[0].param_groups[0]
    return rates[first["name"]] / float(first["initial_lr"])


def _mean(pairs: list[tuple[Tensor, Any]]) -> float:
    """Mean of the values of micro-batches, each counted as often as it has predictions."""
    values = torch.stack([value.detach().float() for value, _ in pairs])
    if len(values) == 1:  # a step of another task may count no predictions
        return float(values)
    weights = torch.stack([torch.as_tensor(n, device=values.device) for _, n in pairs]).float()
    return float((values * weights).sum() / weights.sum()) if weights.any() else 0.0


#: Columns of steps.csv: exactly the fields of TITAN Table 5 (SPEC T5).
FIELDS = (
    "timestamp",
    "epoch",
    "step",
    "global_step",
    "loss",
    "accuracy",
    "learning_rate",
    "grad_norm",
    "scaler_scale",
    "gpu_memory_gb",
    "gpu_cached_gb",
)
STEP = "global_step"


class StepLog(Callback):
    """Writes steps.csv; a resumed run first cuts off the rows past the step that it resumes from.

    A file that another version began keeps its columns; one without a column of steps is renamed.

    Append-only and unbuffered: the rows are on disk whatever happens to the process.
    """

    def __init__(self) -> None:
        self._file: io.FileIO | None = None
        self._columns: Sequence[str] = FIELDS
        self._end = 0

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.is_global_zero:
            self.open(RunDir(Path(trainer.default_root_dir)).steps, trainer.global_step)

    def open(self, path: Path, resumed_step: int = 0) -> None:
        """Begin a file, or go on with one.

        Args:
            path: of the CSV file.
            resumed_step: optimiser steps already taken by the checkpoint resumed from.
        """
        if not path.is_file() or (resumed_step and STEP not in header(path)):
            move_aside(path)
        # Cut in place: rows that count are never anywhere but on disk, whenever we are killed.
        # Unbuffered: on a full disk a row is there or not, and nothing is left to fail at the end.
        self._file = path.open("r+b" if path.exists() else "w+b", buffering=0)
        self._columns = header(path) if resumed_step else ()
        self._end = _end_of(self._file.read(), self._columns, resumed_step)
        self._file.truncate(self._end)
        self._file.seek(self._end)
        if not self._end:
            self._columns = FIELDS
            self._write(dict(zip(FIELDS, FIELDS, strict=True)))

    def on_step(self, step: Step) -> None:
        cuda = torch.cuda.is_available()
        clipped = min(step.grad_norm, step.clip) if step.clip else step.grad_norm
        values = (
            step.timestamp,
            step.epoch,
            step.step,
            step.global_step,
            step.loss,
            step.accuracy,
            step.lr,
            clipped,  # Table 5: the norm after clipping
            step.scaler_scale,
            torch.cuda.memory_allocated() / 1e9 if cuda else 0.0,
            torch.cuda.memory_reserved() / 1e9 if cuda else 0.0,
        )
        self._write(dict(zip(FIELDS, values, strict=True)))

    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.close()

    def on_exception(self, trainer: pl.Trainer, pl_module: Any, exception: BaseException) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; no row is written after this."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _write(self, row: Mapping[str, object]) -> None:
        if self._file is None:  # of a process that keeps no log
            return
        line = io.StringIO()
        csv.writer(line).writerow([row.get(name, "") for name in self._columns])
        data = line.getvalue().encode()
        try:
            if self._file.write(data) != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self._file.name)
        except OSError:
            self._file.truncate(self._end)
            raise
        self._end += len(data)


def _end_of(data: bytes, columns: Sequence[str], step: int) -> int:
    """Offset of the end of a step's row; a last line torn by a kill does not count.

    A line without a number of a step in it, which somebody else has damaged, stays.
    """
    if step == 0 or not columns:
        return 0
    place = columns.index(STEP)
    end = 0
    for line in data.split(b"\n")[:-1]:
        number = line.split(b",")[place : place + 1]
        if number and number[0].isdigit() and int(number[0]) > step:
            break
        end += len(line) + 1
    return end
