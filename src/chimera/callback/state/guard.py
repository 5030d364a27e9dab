"""Keep NaN and infinity out of the weights (SPEC T6; TITAN 8.4.3).

The guard checks the losses of a step's micro-batches and its gradient norm before the update.
These numbers are fetched from the device anyway, so it costs nothing.
"""

from __future__ import annotations

import logging
import math
from pathlib import Path
from typing import Any, Literal

import lightning.pytorch as pl
import rich
from lightning.pytorch.callbacks import Callback

from chimera.callback.lookup import find
from chimera.callback.state import nan_report
from chimera.callback.state.checkpoint import Checkpoints
from chimera.callback.state.step_snapshot import StepSnapshot
from chimera.errors import NotFiniteError
from chimera.ops import reduce
from chimera.rundir.directory import RunDir
from chimera.types import PositiveInt

log = logging.getLogger("chimera")


class NanGuard(Callback):
    """Reports a step that is not finite, saves the state before it, and stops or leaves it out.

    An infinite gradient under fp16 is at first the scaler's to handle: it leaves the step out and
    halves its scale. At a scale of 1 nothing is left to halve: the gradient itself is infinite.

    Args:
        policy: `stop` ends the run; `skip` leaves the step out and goes on.
        max_skips: steps of a run that `skip` leaves out before it stops after all.
        show: print the shortened report.
    """

    def __init__(
        self,
        *,
        policy: Literal["stop", "skip"] = "stop",
        max_skips: PositiveInt = 10,
        show: bool = True,
    ) -> None:
        self.policy = policy
        self.max_skips = max_skips
        self.show = show
        self.skipped = self.scaler_skipped = 0
        self._batches: list[Any] = []
        self._before = -1

    def state_dict(self) -> dict[str, int]:
        return {"skipped": self.skipped, "scaler_skipped": self.scaler_skipped}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        self.skipped = state_dict["skipped"]
        self.scaler_skipped = state_dict["scaler_skipped"]

    def chart(self) -> dict[str, float]:
        """Steps left out so far, by the guard and by the scaler."""
        return {"guard/skipped": self.skipped, "guard/scaler_skipped": self.scaler_skipped}

    def setup(self, trainer: pl.Trainer, pl_module: Any, stage: str) -> None:
        self.directory = RunDir(Path(trainer.default_root_dir))
        self.snapshot = find(trainer, StepSnapshot)
        self.checkpoints = find(trainer, Checkpoints)
        pl_module.guard = self

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, *_: Any
    ) -> None:
        if trainer.global_step > self._before:
            self._batches = []
        self._before = trainer.global_step
        self._batches.append(batch)

    def check(self, task: Any, grad_norm: float, losses: list[float]) -> None:
        """Before the update: let it pass, take the gradients away, or stop.

        Raises:
            NotFiniteError: the policy is to stop, or enough has been skipped.
        """
        trainer = task.trainer
        self.snapshot.updating = True
        broken = reduce.any_of(not all(map(math.isfinite, losses)))
        if math.isfinite(grad_norm) and not broken:
            return
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        if scaler is not None and not broken and scaler.get_scale() > 1:
            self.scaler_skipped += 1
            return
        self.snapshot.updating = False
        skip = self.policy == "skip" and self.skipped < self.max_skips
        why = self._report(trainer, task, grad_norm, losses)
        if not skip:
            spent = f" ({self.skipped} steps were skipped before)" if self.skipped else ""
            raise NotFiniteError(f"{why}{spent}")
        self.skipped += 1
        log.warning("%s; step left out (%d of %d)", why, self.skipped, self.max_skips)
        self.snapshot.restore_buffers()
        for parameter in task.parameters():  # an optimiser passes over what has no gradient
            parameter.grad = None
        self.snapshot.updating = True

    def _report(self, trainer: pl.Trainer, task: Any, grad_norm: float, losses: list[float]) -> str:
        """Write the report, the batch and the state; returns the report's first line."""
        self.snapshot.restore_buffers()
        recorded = (self.directory.path / "config.yaml").exists()
        config = self.directory.config() if recorded else {}
        facts = nan_report.collect(trainer, task, self._batches, losses, grad_norm, config)
        broken = bool(facts["weights_not_finite"])
        state = self.checkpoints.emergency(
            trainer, "broken" if broken else "emergency", resumable=not broken
        )
        if broken and trainer.is_global_zero:
            self.checkpoints.rescue()
        facts["state"] = None if state is None else str(state.relative_to(self.directory.path))
        file = nan_report.write(self.directory.path, facts, self._batches)
        # On the console of the progress bar, which would be drawn over otherwise.
        if self.show and trainer.is_global_zero:
            text = "\n  ".join(nan_report.shortened(facts, file))
            rich.get_console().print(text, highlight=False, soft_wrap=True, markup=False)
        return f"{facts['what']} at step {facts['step']}; report: {file.with_suffix('.md')}"
