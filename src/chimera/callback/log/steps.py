"""One record per optimiser step, made of its micro-batches, and steps.csv, which has a row of each.

The step log, the metrics and the progress display all read it, so each number is computed once.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback

from chimera.callback import with_method
from chimera.data.batch.module import real_tokens
from chimera.ops import reduce
from chimera.ops.step_numbers import by_name, mean
from chimera.rundir.directory import RunDir
from chimera.rundir.steps import header, move_aside
from chimera.safe_io import LineLog


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
        scaler_scale: factor of fp16's scaler on the step's loss; 1 without one.
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


def mean_loss(steps: Collection[Step]) -> float:
    """Mean loss of the steps that were not left out; NaN if there are none."""
    losses = [step.loss for step in steps if math.isfinite(step.loss)]
    return sum(losses) / len(losses) if losses else math.nan


@dataclass
class Spikes:
    """Counts the steps whose gradient norm before clipping is far above that of the steps before.

    That is by seven standard deviations, as in OLMo 2's spike score (arXiv 2501.00656, 3.2); the
    mean and the deviation are running ones of some hundred steps here.
    """

    count: int = 0
    steps: int = 0
    mean: float = 0.0
    square: float = 0.0

    def add(self, norm: float) -> None:
        """Count a step; one with a norm that is not finite is left out."""
        if not math.isfinite(norm):
            return
        deviation = math.sqrt(max(self.square - self.mean**2, 0.0))
        self.count += self.steps >= 100 and norm > self.mean + 7 * deviation
        self.steps += 1
        share = max(1 / self.steps, 0.01)
        self.mean += share * (norm - self.mean)
        self.square += share * (norm**2 - self.square)


class Steps(Callback):
    """Makes the record of each optimiser step and calls `on_step(step)` of every callback with one.

    Keeps the wall time of the run, over all the processes that it takes. It counts from the
    construction: make it first.
    """

    def __init__(self) -> None:
        self.last: Step | None = None  # of which all listeners know
        self.tokens = 0
        self.seconds = 0.0
        self.spikes = Spikes()
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

    def state_dict(self) -> dict[str, Any]:
        counted = {"tokens": self.tokens, "seconds": self.seconds, "wall": self.wall_seconds}
        return {**counted, "spikes": asdict(self.spikes)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.spikes = Spikes(**state_dict["spikes"])
        self.tokens = int(state_dict["tokens"])
        self.seconds = state_dict["seconds"]
        self._wall_before = state_dict["wall"]

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        self._listeners = with_method(trainer, "on_step")
        if stage == "fit":
            for logger in trainer.loggers:
                log_at_global_step(logger, trainer)

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
        tokens = batch.get("tokens")  # counted by our data modules
        self._tokens += real_tokens(batch) if tokens is None else tokens
        if trainer.global_step == self._before:
            return
        now = time.perf_counter()
        step = self._finish(trainer, pl_module, batch_idx, now - self._clock)
        # The first step warms caches and allocators up; it would make short runs look slow.
        if self._warm:
            self.tokens += step.tokens
            self.seconds += step.seconds
        self.spikes.add(step.grad_norm)
        self._warm = True
        self._clock = now
        self._tokens = 0
        self._micro.clear()
        for listener in self._listeners:
            listener.on_step(step)
        self.last = step

    def _finish(self, trainer: pl.Trainer, task: Any, batch_idx: int, seconds: float) -> Step:
        by_value = trainer.gradient_clip_algorithm == "value"
        means, tokens = self._of_all(task)
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
            scaler_scale=task.loss_scale,
            tokens=tokens,
            seconds=seconds,
            aux={key[4:]: value for key, value in means.items() if key.startswith("aux/")},
            stats={key[6:]: value for key, value in means.items() if key.startswith("stats/")},
        )

    def _of_all(self, task: Any) -> tuple[dict[str, float], int]:
        """Means over the predictions of the step, and its tokens, of all processes."""
        pairs = by_name(self._micro)
        # The task has read its own before; callbacks may have added some.
        added = {name: mean(each) for name, each in pairs.items() if name not in task.means}
        read = torch.stack([*added.values()]).tolist() if added else []
        known = task.means | dict(zip(added, read, strict=True))
        means = [known[name] for name in pairs]
        tokens: float = self._tokens
        if reduce.participants() > 1:
            count = sum(float(count) for _, count in pairs["loss"])
            *sums, total, tokens = reduce.totals([*(m * count for m in means), count, tokens])
            means = [each / (total or 1) for each in sums]
        return dict(zip(pairs, means, strict=True)), int(tokens)


def log_at_global_step(logger: Any, trainer: pl.Trainer) -> None:
    """Let a logger have every point under the number of optimiser steps taken.

    Lightning counts a step after its validation: it would log that one step early.
    """
    log = logger.log_metrics

    def log_metrics(metrics: Any, step: int | None = None) -> None:
        log(metrics, trainer.global_step)

    logger.log_metrics = log_metrics


def _factor(trainer: pl.Trainer, rates: dict[str, float]) -> float:
    """Of the schedule at this step, 1 at its peak."""
    first = trainer.optimizers[0].param_groups[0]
    return rates[first["name"]] / float(first["initial_lr"])


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


class StepLog(Callback):
    """Writes steps.csv; a resumed run first cuts off the rows past the step that it resumes from.

    A file with other columns is renamed, for it may be somebody's.
    """

    def __init__(self) -> None:
        self._rows: LineLog | None = None

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.is_global_zero:
            self.open(RunDir(Path(trainer.default_root_dir)).steps, trainer.global_step)

    def open(self, path: Path, resumed_step: int = 0) -> None:
        """Begin a file, or go on with one.

        Args:
            path: of the CSV file.
            resumed_step: optimiser steps already taken by the checkpoint resumed from.
        """
        if header(path) != list(FIELDS):
            move_aside(path)

        def counts(line: bytes) -> bool:
            number = line.split(b",")[3:4]
            return not (number and number[0].isdigit() and int(number[0]) > resumed_step)

        self._rows = LineLog(path, counts)
        if not self._rows.end:
            self._rows.write(",".join(FIELDS))

    def on_step(self, step: Step) -> None:
        if self._rows is None:  # of a process that keeps no log
            return
        cuda = torch.cuda.is_available()
        # The flat form of these statistics takes longer than all else here.
        memory = torch.cuda.memory_stats_as_nested_dict() if cuda else {}
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
            *(_current(memory, kind) / 1e9 for kind in ("allocated_bytes", "reserved_bytes")),
        )
        self._rows.write(",".join(map(str, values)))

    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.close()

    def on_exception(self, trainer: pl.Trainer, pl_module: Any, exception: BaseException) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; no row is written after this."""
        if self._rows is not None:
            self._rows.close()
            self._rows = None


def _current(memory: Mapping[str, Any], kind: str) -> float:
    """Of torch.cuda's statistics, which are empty before the first allocation."""
    return float(memory[kind]["all"]["current"]) if memory else 0.0
