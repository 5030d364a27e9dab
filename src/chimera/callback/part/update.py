"""Whether the optimiser has changed the weights: the one place that decides it.

A step that the gradient scaler of fp16 skips counts in `trainer.global_step`, but `optimizer.step`
is not called, and its gradients stay infinite. A step that the guard leaves out has no gradients
when it ends. A part that takes such gradients for its own numbers (gates, importances, a
calibration) gets infinity and NaN, and keeps them. Callbacks of parts therefore derive from
`OnUpdate`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback

from chimera.callback import parts_with


class OnUpdate(Callback):
    """Calls `on_update` after each batch whose optimiser step has changed weights.

    A subclass that overrides `on_train_start` or `on_train_batch_end` calls these.

    Attributes:
        modules: those of the model that have the subclass' `method`.
    """

    method = ""
    modules: Sequence[Any] = ()

    #: The optimiser whose `step` has returned since the last batch began.
    stepped: torch.optim.Optimizer | None = None

    def on_update(self, trainer: pl.Trainer, pl_module: Any, outputs: Any, batch: Any) -> None:
        """Act on the new weights; gradients are those of the step."""

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.modules = parts_with(pl_module, self.method)
        for optimizer in trainer.optimizers:
            optimizer.register_step_post_hook(self._stepped)

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: Any, outputs: Any, batch: Any, *_: Any
    ) -> None:
        optimizer = self.stepped
        self.stepped = None
        groups = () if optimizer is None else optimizer.param_groups
        if any(p.grad is not None for group in groups for p in group["params"]):
            self.on_update(trainer, pl_module, outputs, batch)

    def _stepped(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        """Hook of torch, called where `optimizer.step` returns; the guard may look after that."""
        self.stepped = optimizer
