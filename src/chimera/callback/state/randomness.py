"""Dropout and other draws of the model as a function of (seed, micro-batch, rank) alone.

Checkpoints hold no generator state; this makes it unnecessary: a resumed run draws the same.
"""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
from lightning.pytorch.callbacks import Callback


class StatelessRandomness(Callback):
    """Reseeds torch before every micro-batch."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        micro = trainer.fit_loop.epoch_loop.total_batch_idx
        entropy = np.random.SeedSequence([self.seed, micro, trainer.global_rank])
        torch.manual_seed(int(entropy.generate_state(1, np.uint64)[0] >> 1))
