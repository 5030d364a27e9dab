"""What every task shares: the optimiser, clipping with the norm kept, auxiliary losses weighed."""

from __future__ import annotations

import math
from pathlib import Path
from typing import ClassVar

import lightning.pytorch as pl
import torch
from lightning.pytorch.utilities.types import OptimizerLRSchedulerConfig
from torch import Tensor, nn

from chimera.data.corpus import Data
from chimera.data.loader import ResumableLoader
from chimera.data.prepare import Prepared
from chimera.errors import NotFiniteError
from chimera.optim.groups import groups
from chimera.optim.schedule import warmup_cosine
from chimera.settings import Optim


class Task(pl.LightningModule):
    """A LightningModule around a model: loss and metrics, nothing of data or files.

    Args:
        model: what is trained.
        optim: rates, decays, schedule.
        total_steps: optimiser steps of the whole run; the schedule's length.
        weights: factor on each auxiliary loss by key (TITAN eq. 51); 0 where it has none.
    """

    causal: ClassVar[bool]

    def __init__(
        self, model: nn.Module, optim: Optim, total_steps: int, weights: dict[str, float]
    ) -> None:
        super().__init__()
        self.model, self.optim, self.total_steps = model, optim, total_steps
        self.weights = weights
        self.grad_norm = float("nan")  # before clipping, of the last step

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

    def weigh(self, loss: Tensor, aux: dict[str, Tensor]) -> Tensor:
        """The task's loss with the auxiliary ones added by their weights; refused if not finite."""
        for key, value in aux.items():
            if self.weights.get(key):
                loss = loss + self.weights[key] * value
        if not math.isfinite(float(loss.detach())):
            raise NotFiniteError(
                f"loss is {float(loss.detach())} at step {self.trainer.global_step + 1}"
            )
        return loss

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
        """Clip by the global norm, which is taken once, kept for the log and refused if not finite.

        Under fp16 an infinite gradient is the scaler's to handle: it skips the step and lowers its
        scale.
        """
        gradients = [p.grad for p in self.parameters() if p.grad is not None]
        norm = nn.utils.get_total_norm(gradients)
        self.grad_norm = float(norm)
        scaled = getattr(self.trainer.precision_plugin, "scaler", None) is not None
        if not math.isfinite(self.grad_norm) and not scaled:
            bad = [n for n, p in self.named_parameters() if p.grad is not None and _broken(p.grad)]
            raise NotFiniteError(
                f"gradient of {bad[0]} (and of {len(bad) - 1} more) is not finite"
                f" at step {self.trainer.global_step + 1}"
            )
        if gradient_clip_val:
            nn.utils.clip_grads_with_norm_(self.parameters(), gradient_clip_val, norm)


def _broken(gradient: Tensor) -> bool:
    return not bool(torch.isfinite(gradient).all())
