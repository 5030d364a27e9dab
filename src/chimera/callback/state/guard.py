"""Nothing that is NaN or infinite reaches the weights (SPEC T6; TITAN 8.4.3).

Looks at the losses of a step's micro-batches and at its gradient norm once they are all there and
before the update, at numbers that are fetched from the device anyway.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Callback

from chimera.callback.state import nan_report
from chimera.callback.state.checkpoint import Checkpoints
from chimera.callback.state.step_snapshot import Boundary
from chimera.config.settings import Guard as Settings
from chimera.errors import NotFiniteError

log = logging.getLogger("chimera")


class NanGuard(Callback):
    """Reports a step that is not finite, saves the state of before it, and stops or leaves it out.

    An infinite gradient under fp16 is at first the scaler's to handle: it leaves the step out and
    halves its scale. At a scale of 1 nothing is left to halve: the gradient itself is infinite.

    Args:
        directory: of the run.
        settings: stop, or skip and how often.
        boundary, checkpoints: save the state of before the step.
        config: of the run, for the report.
        show: prints the report, shortened.
    """

    def __init__(
        self,
        directory: Path,
        settings: Settings,
        boundary: Boundary,
        checkpoints: Checkpoints,
        config: dict[str, Any],
        show: Callable[[str], None],
    ) -> None:
        self.directory, self.settings, self.config, self.show = directory, settings, config, show
        self.boundary, self.checkpoints = boundary, checkpoints
        self.skipped = self.scaler_skipped = 0
        self._batches: list[Any] = []
        self._before = -1

    def state_dict(self) -> dict[str, int]:
        return {"skipped": self.skipped, "scaler_skipped": self.scaler_skipped}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        self.skipped, self.scaler_skipped = state_dict["skipped"], state_dict["scaler_skipped"]

    def numbers(self) -> dict[str, float]:
        """For a chart: steps left out so far, by us and by the scaler."""
        return {"guard/skipped": self.skipped, "guard/scaler_skipped": self.scaler_skipped}

    def setup(self, trainer: pl.Trainer, pl_module: Any, stage: str) -> None:
        pl_module.guard = self

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        if trainer.global_step > self._before:
            self._batches = []
        self._before = trainer.global_step
        self._batches.append(batch)

    def check(self, task: Any, grad_norm: float, losses: list[float]) -> None:
        """Before the update: let it pass, make it one of nothing, or stop.

        Raises:
            NotFiniteError: the policy is to stop, or enough has been skipped.
        """
        trainer = task.trainer
        self.boundary.updating = True
        if math.isfinite(grad_norm) and all(map(math.isfinite, losses)):
            return
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        if scaler is not None and all(map(math.isfinite, losses)) and scaler.get_scale() > 1:
            self.scaler_skipped += 1
            return
        self.boundary.updating = False
        skip = self.settings.policy == "skip" and self.skipped < self.settings.max_skips
        why = self._report(trainer, task, grad_norm, losses)
        if not skip:
            spent = f" ({self.skipped} steps were skipped before)" if self.skipped else ""
            raise NotFiniteError(f"{why}{spent}")
        self.skipped += 1
        log.warning("%s; step left out (%d of %d)", why, self.skipped, self.settings.max_skips)
        self.boundary.restore_buffers()
        for parameter in task.parameters():  # an optimiser passes over what has no gradient
            parameter.grad = None
        self.boundary.updating = True

    def _report(self, trainer: pl.Trainer, task: Any, grad_norm: float, losses: list[float]) -> str:
        """Write the report, the batch and the state; returns the report's first line."""
        self.boundary.restore_buffers()
        facts = nan_report.collect(trainer, task, self._batches, losses, grad_norm, self.config)
        broken = bool(facts["weights_not_finite"])
        state = self.checkpoints.emergency(
            trainer, "broken" if broken else "emergency", resumable=not broken
        )
        if broken:
            self.checkpoints.rescue()
        facts["state"] = None if state is None else str(state.relative_to(self.directory))
        file = nan_report.write(self.directory, facts, self._batches)
        self.show(nan_report.shortened(facts, file))
        return f"{facts['what']} at step {facts['step']}; report: {file.with_suffix('.md')}"
