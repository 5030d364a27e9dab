"""Two stages of activations in training, as BitNet a4.8 and v2 have them: 8 bits, then fewer.

The quantiser's YAML names this callback, which finds layers by the method `set_stage`, not by
class.
"""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Callback

from chimera.callback import parts_with
from chimera.types import Fraction


class ActivationStages(Callback):
    """Sets the stage before each batch, by `trainer.global_step` alone: a resumed run has the same.

    A layer that an earlier run has trained up to the late stage stays there, so fine-tuning does
    not start over.

    Args:
        early: share of the run's steps that the early stage takes.
    """

    def __init__(self, *, early: Fraction = 0.95) -> None:
        self.early = early
        self._layers: list[Any] = []

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        layers = parts_with(pl_module, "set_stage")
        begun = trainer.global_step > 0
        self._layers = [layer for layer in layers if begun or not layer.finished]
        self._change_at = self.early * trainer.estimated_stepping_batches

    def on_train_batch_start(self, trainer: pl.Trainer, *_: Any) -> None:
        for layer in self._layers:
            layer.set_stage(trainer.global_step >= self._change_at)
