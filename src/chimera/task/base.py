"""Base of the tasks: total loss, optimiser and schedule, clipping by the global gradient norm."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol

import lightning.pytorch as pl
import torch
from lightning.pytorch.utilities.types import OptimizerLRSchedulerConfig
from torch import Tensor, nn

from chimera.config.settings import Optim
from chimera.data.batch.module import DataModule
from chimera.data.tokenizer.base import TokenizerSettings
from chimera.errors import NotFiniteError
from chimera.optim.groups import groups
from chimera.optim.optimizer import build

Stage = Literal["val", "test"]


class Guard(Protocol):
    """Decides on a step before its update."""

    def check(self, task: Any, grad_norm: float, losses: list[float]) -> None:
        """Raise, take the gradients away so that the update does nothing, or let it pass."""


class RaiseIfNotFinite:
    """The guard of a task that was given none."""

    def check(self, task: Any, grad_norm: float, losses: list[float]) -> None:
        """Raise if a number is not finite."""
        if not all(map(math.isfinite, (grad_norm, *losses))):
            raise NotFiniteError(f"losses {losses}, gradient norm {grad_norm}")


class Task(pl.LightningModule):
    """A LightningModule around a model: loss, metrics, optimiser.

    `Trainer.fit(task, datamodule=…)` trains it with the data module that `data_module` makes.

    Args:
        model: what is trained.
        optim: rates, decays, schedule.
        total_steps: optimiser steps of the whole run; the schedule's length.
        weights: factor on each auxiliary loss by key (TITAN eq. 51); 0 where it has none.
    """

    causal: ClassVar[bool | None]  # None: as the model does
    #: Whether any corpus will do. If not, `wants` names the function that checks a corpus.
    plain_text = True
    #: The metric that the best checkpoint is best in, whether lower or higher is better, and which
    #: checkpoint (last or best) the final test is made with.
    monitor, better, final = "val/loss", "lower", "last"

    def __init__(
        self, model: nn.Module, optim: Optim, total_steps: int, weights: dict[str, float]
    ) -> None:
        super().__init__()
        self.model, self.optim, self.total_steps = model, optim, total_steps
        self.weights = weights
        self.grad_norm = float("nan")  # before clipping, of the last step
        self.guard: Guard = RaiseIfNotFinite()
        self._losses: list[Tensor] = []  # of the micro-batches of the step under way

    @classmethod
    def data_module(
        cls, corpus: Any, tokenizer: TokenizerSettings, seed: int, settings: Mapping[str, Any]
    ) -> DataModule:
        """The data module that makes this task's batches.

        Args:
            corpus: a choice of `data=`.
            tokenizer: a choice of `tokenizer=`.
            seed: of the order of the training examples.
            settings: keyword arguments of the task's constructor.
        """
        raise NotImplementedError

    def configure_head(self, corpus: Any) -> None:
        """Put on the head that the corpus needs, before an adapter is injected."""

    def configure_for(self, data: DataModule, stage: str) -> None:
        """Read from the data module what loss and metrics need; refuse what the model cannot do.

        Lightning's `setup` calls this with the Trainer's data module; so does a run before it
        writes anything. Calling it twice changes nothing.

        Args:
            data: the data module.
            stage: fit, validate or test.
        """

    def setup(self, stage: str) -> None:
        data: DataModule | None = getattr(self.trainer, "datamodule", None)
        if data is not None:
            self.configure_for(data, stage)

    def write_predictions(self, directory: Path) -> None:
        """Write the predictions of the final test, if the task has any to hand in."""

    def baselines(self, data: DataModule, batches: int | None) -> dict[str, float]:
        """Metrics of a trivial predictor on the first `batches` (None: all) of validation."""
        return {}

    def extra_metrics(self, trainer: pl.Trainer, data: DataModule) -> dict[str, float]:
        """Task-specific metrics of the trained model, after validation and test."""
        return {}

    def total_loss(self, loss: Tensor, aux: dict[str, Tensor]) -> Tensor:
        """Task loss plus weighted auxiliary losses; kept for the guard, which checks the step."""
        for key, value in aux.items():
            if self.weights.get(key):
                loss = loss + self.weights[key] * value
        self._losses.append(loss.detach().float())
        return loss

    def step_output(
        self,
        loss: Tensor,
        accuracy: Tensor,
        aux: dict[str, Tensor],
        stats: dict[str, Tensor],
        *,
        objective: Tensor | None = None,
    ) -> dict[str, Any]:
        """The dict that a training step returns; callbacks log it.

        Args:
            loss: task loss, as it is logged.
            accuracy: of the batch.
            aux: auxiliary losses, unweighted.
            stats: scalars for charts.
            objective: the loss that is minimised, before auxiliary losses, if it is not `loss`.
        """
        return {
            "loss": self.total_loss(loss if objective is None else objective, aux),
            "task_loss": loss.detach(),
            "accuracy": accuracy,
            "aux": {key: value.detach() for key, value in aux.items()},
            "stats": stats,
        }

    def update_metrics(self, batch: dict[str, Any], stage: Stage) -> Any:
        """Add a batch to the metrics of a stage."""
        raise NotImplementedError

    def compute_metrics(self, stage: Stage) -> dict[str, float]:
        """Values of the metrics of a stage, which are then reset."""
        raise NotImplementedError

    def validation_step(self, batch: dict[str, Any], batch_idx: int) -> None:
        self.update_metrics(batch, "val")

    def test_step(self, batch: dict[str, Any], batch_idx: int) -> None:
        self.update_metrics(batch, "test")

    def on_validation_epoch_end(self) -> None:
        self._log_metrics("val")

    def on_test_epoch_end(self) -> None:
        self._log_metrics("test")

    def _log_metrics(self, stage: Stage) -> None:
        metrics = self.compute_metrics(stage)
        self.log_dict({f"{stage}/{key}": value for key, value in metrics.items()})

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        # The fused step cannot unscale fp16 gradients itself before Lightning clips them.
        fused = self.trainer.precision != "16-mixed"
        optimizer, schedule = build(
            self.optim, groups(self.model, self.optim), self.total_steps, fused=fused
        )
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": schedule, "interval": "step"},
        }

    def configure_gradient_clipping(
        self,
        optimizer: torch.optim.Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Clip by the global norm, after the guard has checked it and the step's losses.

        The norm and the micro-batches' losses leave the device in one transfer.
        """
        gradients = [p.grad for p in self.parameters() if p.grad is not None]
        norm = nn.utils.get_total_norm(gradients)
        self.grad_norm, *losses = torch.stack([norm.float(), *self._losses]).tolist()
        self._losses = []
        self.guard.check(self, self.grad_norm, losses)
        if gradient_clip_val and math.isfinite(self.grad_norm):
            nn.utils.clip_grads_with_norm_(self.parameters(), gradient_clip_val, norm)
