"""The schedule of LiZAttention's mixing weight α (SPEC T7; TPTT 4.2, «LiZA callback»).

    constant    α is what the component says
    gradual     α(s) = start + (end − start)·min(s/steps, 1)
    cyclic      α(s) = values[s mod n]

s is the optimiser step, so a resumed run has the same α. The weight is a buffer: a checkpoint holds
the last one trained with. The component's YAML names this callback, which finds its modules by the
method `set_mag_weight`, not by class.
"""

from __future__ import annotations

from typing import Any, Literal

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback

from chimera.callback import parts_with
from chimera.types import Fraction, PositiveInt


class MagSchedule(Callback):
    """Sets α before each training step.

    Args:
        schedule: see above.
        start: α of the gradual schedule at step 0.
        end: α that it ends at.
        steps: optimiser steps of the ramp; half of the run's, if that is shorter.
        values: α of the cyclic schedule, one a step.
        evaluate: α in validation, test and the final checkpoint; null: that of the last step.
    """

    def __init__(
        self,
        *,
        schedule: Literal["constant", "gradual", "cyclic"] = "constant",
        start: Fraction = 0.01,
        end: Fraction = 0.5,
        steps: PositiveInt = 100,
        values: list[Fraction] | None = None,
        evaluate: Fraction | None = None,
    ) -> None:
        self.schedule = schedule
        self.start = start
        self.end = end
        self.steps = steps
        self.values = values or [0.0, 0.5, 1.0]
        self.evaluate = evaluate
        self._modules: list[Any] = []

    def weight(self, step: int, total: int) -> float | None:
        """α at an optimiser step of a run of `total` steps; None leaves it as it is."""
        if self.schedule == "gradual":
            length = min(self.steps, max(1, total // 2))
            return self.start + (self.end - self.start) * min(step / length, 1.0)
        if self.schedule == "cyclic":
            return self.values[step % len(self.values)]
        return None

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        self._modules = parts_with(pl_module, "set_mag_weight")

    def on_train_batch_start(self, trainer: pl.Trainer, *_: Any) -> None:
        self._set(self.weight(trainer.global_step, trainer.max_steps))

    @torch.no_grad()
    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: Any, outputs: Any, *_: Any
    ) -> None:
        """Log the statistics of grafted memories, which return no `Out`: means over the layers."""
        stats = [module.scalars() for module in self._modules if hasattr(module, "scalars")]
        if stats and all(stats):
            means = {key: torch.stack([one[key] for one in stats]).mean() for key in stats[0]}
            outputs["stats"] |= means

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._set(self.evaluate)

    def on_test_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._set(self.evaluate)

    def _set(self, weight: float | None) -> None:
        if weight is None:
            return
        for module in self._modules:
            module.set_mag_weight(weight)
