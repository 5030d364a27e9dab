"""Make dropout and other draws a function of (seed, micro-batch, rank) alone.

Checkpoints need no generator state then: a resumed run draws the same.
"""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
from lightning.pytorch.callbacks import Callback

from chimera.types import NonNegativeInt


class StatelessRandomness(Callback):
    """Reseeds torch before every micro-batch.

    Args:
        seed: of the run.
    """

    def __init__(self, *, seed: NonNegativeInt = 0) -> None:
        self.seed = seed

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        micro = trainer.fit_loop.epoch_loop.total_batch_idx
        entropy = np.random.SeedSequence([self.seed, micro, trainer.global_rank])
        torch.manual_seed(int(entropy.generate_state(1, np.uint64)[0] >> 1))
