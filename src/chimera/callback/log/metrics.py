"""Training metrics to the logger, every n-th optimiser step, with norms of gradients (SPEC T8)."""

from __future__ import annotations

import math
import resource
import sys
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback

from chimera.callback import with_method
from chimera.callback.log.steps import Step, mean_loss
from chimera.ops import reduce
from chimera.ops.shards import is_sharded, local
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
        self._sources = with_method(trainer, "chart")

    def on_step(self, step: Step) -> None:
        self._recent.append(step)
        if step.global_step % self.every == 0:
            point = self._point(step) if self._loggers else {}
            for logger in self._loggers:
                logger.log_metrics(point, step=step.global_step)
            self._recent.clear()

    def _point(self, step: Step) -> dict[str, float]:
        recent = self._recent
        seconds = sum(s.seconds for s in recent)
        loss = mean_loss(recent)
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


class GradientNorms(Callback):
    """L2 norm of gradients by optimiser group, before clipping (SPEC T8).

    Steps that are not logged cost nothing.

    Args:
        every: optimiser steps between two measurements.
    """

    takes_scaled_gradients = True

    def __init__(self, *, every: PositiveInt = 10) -> None:
        self.every = every
        self.norms: dict[str, float] = {}

    @torch.no_grad()
    def on_before_optimizer_step(self, trainer: pl.Trainer, pl_module: Any, optimizer: Any) -> None:
        if (trainer.global_step + 1) % self.every:
            return
        sharded = False
        squares: dict[str, torch.Tensor] = {}  # a component may have a group without decay
        for group in optimizer.param_groups:
            gradients = [p.grad for p in group["params"] if p.grad is not None]
            sharded = sharded or any(map(is_sharded, gradients))
            if gradients := local(gradients):
                each = torch.stack(torch._foreach_norm(gradients)).float().square().sum()
                name = str(group["name"])
                squares[name] = squares[name] + each if name in squares else each
        if squares:  # all in one transfer from the device
            sums = torch.stack([*squares.values()])
            known = getattr(pl_module, "gradient_scale", None)  # of chimera's tasks
            if known is not None and (scale := known(optimizer)) is not None:
                sums = sums / scale.square()
            norms = (reduce.total(sums) if sharded else sums).sqrt().tolist()
            self.norms = dict(zip(squares, norms, strict=True))

    def chart(self) -> dict[str, float]:
        """`grad_norm/<component>` of the last measurement."""
        return {f"grad_norm/{name}": norm for name, norm in self.norms.items()}
