"""QDyT in training (SPEC N3, T7; QDYT 3.3): warm-up of α, one calibration of γ.

The norm's YAML names this callback, which finds norms by their methods, not by class.
"""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
import torch

from chimera.callback import parts_with
from chimera.callback.part.update import OnUpdate
from chimera.ops import reduce
from chimera.types import PositiveFloat, PositiveInt


class QDyTSchedule(OnUpdate):
    """Sets α during its warm-up, has γ calibrated once, and settles norms with `running_from`.

    α(step) = start + (end − start)·min(step / length, 1), of `trainer.global_step` alone, so a
    resumed run has the same α. During the warm-up its gradient is dropped before the optimiser's
    step, so the optimiser holds no state for it; afterwards α is learned. The length is
    min(warmup_steps, half of the run's steps), so a short run gets through it.

    γ is calibrated at the first update of the weights by which `sequences` have been seen, counted
    over the micro-batches of gradient accumulation and over all processes; never within an
    accumulation. A norm that is warm or calibrated according to its state is left alone, so
    fine-tuning does not start over.

    Args:
        warmup_steps: steps of the warm-up.
        start: α at step 0.
        end: α at the end of the warm-up, and for the calibration of γ.
        sequences: number in the calibration batch.
    """

    method = "begin_calibration"

    takes_scaled_gradients = True

    def __init__(
        self,
        *,
        warmup_steps: PositiveInt = 2000,
        start: PositiveFloat = 0.05,
        end: PositiveFloat = 0.5,
        sequences: PositiveInt = 32,
    ) -> None:
        self.warmup_steps = warmup_steps
        self.start = start
        self.end = end
        self.sequences = sequences
        self.seen = 0
        self._cold: list[Any] = []
        self._raw: list[Any] = []
        self._settling: list[Any] = []

    def state_dict(self) -> dict[str, Any]:
        return {"seen": self.seen}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.seen = state_dict["seen"]

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        super().on_train_start(trainer, pl_module)
        self._cold = [norm for norm in self.modules if not bool(norm.warm)]
        self._raw = [norm for norm in self.modules if not bool(norm.calibrated)]
        for norm in self._raw:
            norm.begin_calibration(self.end)
        self._steps = int(trainer.estimated_stepping_batches)
        self._length = min(self.warmup_steps, self._steps // 2)
        self._settling = parts_with(pl_module, "settle")

    def on_train_batch_start(self, trainer: pl.Trainer, *_: Any) -> None:
        done = min(trainer.global_step / max(self._length, 1), 1.0) if self._length else 1.0
        for norm in self._cold:
            norm.set_alpha(self.start + (self.end - self.start) * done)
            norm.warm.fill_(done == 1.0)
        if done == 1.0:
            self._cold = []
        for settling in self._settling:
            settling.settle(trainer.global_step / self._steps)

    def on_before_optimizer_step(self, *_: Any) -> None:
        for norm in self._cold:
            norm.alpha.grad = None

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self._raw:
            self.seen += len(batch["ids"]) * trainer.world_size
        super().on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx)

    @torch.no_grad()
    def on_update(self, trainer: pl.Trainer, pl_module: Any, outputs: Any, batch: Any) -> None:
        if self.seen < self.sequences:
            return
        for norm in self._raw:
            for total in (norm.moment, norm.tokens):
                total.copy_(reduce.total(total))
            norm.end_calibration()
        self._raw = []
