"""Make dropout and other draws a function of counters, so that checkpoints need no generator state.

Dropout of our own modules depends on (seed, step, sample) through the counters that a batch gets
here (`chimera.ops.dropout`). What draws from torch's generator, such as dropout inside
`scaled_dot_product_attention` and in Hugging Face bodies, depends on (seed, micro-batch, rank).
"""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
from lightning.pytorch.callbacks import Callback
from torch import nn

from chimera.ops.dropout import counters
from chimera.types import NonNegativeInt


class StatelessRandomness(Callback):
    """Adds `draws`, the samples' counters, to every micro-batch, and reseeds torch before it.

    A model without dropout needs none and gets none.

    Args:
        seed: of the run.
    """

    def __init__(self, *, seed: NonNegativeInt = 0) -> None:
        self.seed = seed
        self._drops = True

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._drops = drops(pl_module)

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, *_: Any
    ) -> None:
        micro = trainer.fit_loop.epoch_loop.total_batch_idx
        entropy = np.random.SeedSequence([self.seed, micro, trainer.global_rank])
        reseed(int(entropy.generate_state(1, np.uint64)[0] >> 1))
        if self._drops and "indices" in batch:
            batch["draws"] = counters(self.seed, trainer.global_step, batch["indices"])


def reseed(seed: int) -> None:
    """`torch.manual_seed` for the devices in use.

    For a GPU that is not, torch notes the call and its stack, which takes longer than all else.
    """
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(seed)
    if torch.backends.mps.is_available():
        torch.mps.manual_seed(seed)


def drops(module: nn.Module) -> bool:
    """Whether a module of ours has dropout: an attribute `dropout` above 0."""
    values = (getattr(part, "dropout", 0.0) for part in module.modules())
    return any(isinstance(value, float) and value > 0 for value in values)
