"""What every task shares: the optimiser, clipping with the norm kept, auxiliary losses weighed."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol

import lightning.pytorch as pl
import torch
from lightning.pytorch.utilities.types import OptimizerLRSchedulerConfig
from torch import Tensor, nn

from chimera.config.settings import Optim
from chimera.data.batch.loader import ResumableLoader
from chimera.data.corpus.base import Data
from chimera.data.encode.prepare import Prepared, prepare
from chimera.data.tokenizer.base import TokenizerSettings
from chimera.errors import NotFiniteError
from chimera.optim.groups import groups
from chimera.optim.schedule import warmup_cosine

Stage = Literal["val", "test"]


class Guard(Protocol):
    """Decides on a step before its update."""

    def check(self, task: Any, grad_norm: float, losses: list[float]) -> None:
        """Raise, take the gradients away so that the update does nothing, or let it pass."""


class Stop:
    """The guard of a task that was given none."""

    def check(self, task: Any, grad_norm: float, losses: list[float]) -> None:
        """Raise if a number is not finite."""
        if not all(map(math.isfinite, (grad_norm, *losses))):
            raise NotFiniteError(f"losses {losses}, gradient norm {grad_norm}")


class Task(pl.LightningModule):
    """A LightningModule around a model: loss and metrics, nothing of data or files.

    Args:
        model: what is trained.
        optim: rates, decays, schedule.
        total_steps: optimiser steps of the whole run; the schedule's length.
        weights: factor on each auxiliary loss by key (TITAN eq. 51); 0 where it has none.
    """

    causal: ClassVar[bool | None]  # None: as the model does
    plain_text = True  # any corpus will do; False: only one of labelled examples
    #: What the best checkpoint is the best in, and which one the final test is made with.
    monitor, better, final = "val/loss", "lower", "last"

    def __init__(
        self, model: nn.Module, optim: Optim, total_steps: int, weights: dict[str, float]
    ) -> None:
        super().__init__()
        self.model, self.optim, self.total_steps = model, optim, total_steps
        self.weights = weights
        self.grad_norm = float("nan")  # before clipping, of the last step
        self.guard: Guard = Stop()
        self._losses: list[Tensor] = []  # of the micro-batches of the step under way

    @classmethod
    def prepare(cls, corpus: Any, settings: TokenizerSettings) -> Prepared:
        """Tokenizer and tokens of a corpus, as this task wants them."""
        return prepare(corpus, settings)

    def meet(self, corpus: Any) -> None:
        """Hear what the data are about, before adapters and loaders are made."""

    def finish(self, directory: Path) -> None:
        """Write what the final test leaves besides its metrics."""

    def loaders(
        self, data: Prepared, settings: Data, seed: int
    ) -> tuple[ResumableLoader, ResumableLoader, ResumableLoader]:
        """Batches of the train, valid and test split, as this task wants them."""
        raise NotImplementedError

    def save_test(self, test: ResumableLoader, file: Path) -> None:
        """Keep the test batches, so that the test can be repeated from the run's directory."""
        raise NotImplementedError

    def load_test(self, file: Path, settings: Data) -> ResumableLoader:
        """The batches that `save_test` kept."""
        raise NotImplementedError

    def baselines(
        self, data: Prepared, valid: ResumableLoader, batches: int | None
    ) -> dict[str, float]:
        """What a trivial predictor reaches on the same `batches` (None: all) of validation."""
        return {}

    def further(self, trainer: pl.Trainer, data: Prepared, settings: Data) -> dict[str, float]:
        """What else is measured of the trained model, after its validation and test."""
        return {}

    def weigh(self, loss: Tensor, aux: dict[str, Tensor]) -> Tensor:
        """The task's loss with the auxiliary ones added by their weights; the guard will look."""
        for key, value in aux.items():
            if self.weights.get(key):
                loss = loss + self.weights[key] * value
        self._losses.append(loss.detach().float())
        return loss

    def outcome(
        self,
        loss: Tensor,
        accuracy: Tensor,
        aux: dict[str, Tensor],
        stats: dict[str, Tensor],
        *,
        total: Tensor | None = None,
    ) -> dict[str, Any]:
        """What a training step returns.

        Args:
            loss: of the task, as it is logged.
            accuracy: of the task.
            aux: auxiliary losses, still to be weighed.
            stats: scalars worth a chart.
            total: what is trained on, before the auxiliary losses, if it is not `loss`.
        """
        return {
            "loss": self.weigh(loss if total is None else total, aux),
            "task_loss": loss.detach(),
            "accuracy": accuracy,
            "aux": {key: value.detach() for key, value in aux.items()},
            "stats": stats,
        }

    def evaluate(self, batch: dict[str, Any], stage: Stage) -> Any:
        """Put a batch into the meters of a stage."""
        raise NotImplementedError

    def measured(self, stage: Stage) -> dict[str, float]:
        """What the meters of a stage say, which then begin anew."""
        raise NotImplementedError

    def validation_step(self, batch: dict[str, Any], batch_idx: int) -> None:
        self.evaluate(batch, "val")

    def test_step(self, batch: dict[str, Any], batch_idx: int) -> None:
        self.evaluate(batch, "test")

    def on_validation_epoch_end(self) -> None:
        self._summarise("val")

    def on_test_epoch_end(self) -> None:
        self._summarise("test")

    def _summarise(self, stage: Stage) -> None:
        self.log_dict({f"{stage}/{key}": value for key, value in self.measured(stage).items()})

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        options = [group.options() for group in groups(self.model, self.optim)]
        beta1, beta2 = self.optim.betas
        # The fused step cannot unscale fp16 gradients itself before Lightning clips them.
        fused = self.trainer.precision != "16-mixed"
        optimizer = torch.optim.AdamW(
            options, betas=(beta1, beta2), eps=self.optim.eps, fused=fused
        )
        factor = warmup_cosine(self.total_steps, self.optim.warmup, self.optim.min_ratio)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
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
        """Clip by the global norm, which is taken once, shown to the guard and kept for the log.

        It leaves the device together with the losses of the step's micro-batches, in one transfer.
        """
        gradients = [p.grad for p in self.parameters() if p.grad is not None]
        norm = nn.utils.get_total_norm(gradients)
        self.grad_norm, *losses = torch.stack([norm.float(), *self._losses]).tolist()
        self._losses = []
        self.guard.check(self, self.grad_norm, losses)
        if gradient_clip_val and math.isfinite(self.grad_norm):
            nn.utils.clip_grads_with_norm_(self.parameters(), gradient_clip_val, norm)
