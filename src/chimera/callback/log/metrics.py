"""Training metrics to the logger (W&B or CSV), every n-th optimiser step (SPEC T8)."""

from __future__ import annotations

import math
import resource
import sys

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback

from chimera.callback.log.steps import Step, Steps
from chimera.callback.lookup import find, with_method
from chimera.types import PositiveInt


def peak_memory_gb() -> float:
    """Peak memory in GB (1e9 bytes): allocated on the GPU if there is one, else resident."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 1e9
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak * (1 if sys.platform == "darwin" else 1024) / 1e9


class MetricsLog(Callback):
    """Logs a point every `every` optimiser steps.

    A callback adds its own numbers by a method `chart() -> dict[str, float]`.

    Args:
        every: optimiser steps between points.
    """

    def __init__(self, *, every: PositiveInt = 10) -> None:
        self.every = every
        self._recent: list[Step] = []

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        self._loggers = trainer.loggers
        self._told = [logger for logger in trainer.loggers if hasattr(logger, "progress")]
        self._steps = find(trainer, Steps) if self._told else None
        self._sources = with_method(trainer, "chart")

    def on_step(self, step: Step) -> None:
        self._recent.append(step)
        for logger in self._told:
            assert self._steps is not None
            logger.progress(self._steps.seen, self._steps.wall_seconds)
        if step.global_step % self.every == 0:
            point = self._point(step) if self._loggers else {}
            for logger in self._loggers:
                logger.log_metrics(point, step=step.global_step)
            self._recent.clear()

    def _point(self, step: Step) -> dict[str, float]:
        recent = self._recent
        seconds = sum(s.seconds for s in recent)
        losses = [s.loss for s in recent if math.isfinite(s.loss)]  # the others were left out
        loss = sum(losses) / len(losses) if losses else math.nan
        return {
            "train/loss": loss,
            "train/perplexity": math.exp(min(loss, 700.0)),
            "train/accuracy": sum(s.accuracy for s in recent) / len(recent),
            "train/grad_norm": step.grad_norm,
            "train/epoch": step.epoch,
            "speed/tokens_per_s": sum(s.tokens for s in recent) / seconds,
            "speed/steps_per_s": len(recent) / seconds,
            "speed/peak_memory_gb": peak_memory_gb(),
            **{f"lr/{name}": rate for name, rate in step.rates.items()},
            **{f"aux/{key}": value for key, value in step.aux.items()},
            **{f"stats/{key}": value for key, value in step.stats.items()},
            **{key: value for source in self._sources for key, value in source.chart().items()},
        }
