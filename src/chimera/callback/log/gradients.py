"""Gradient norm of every component, before clipping, at the steps that are logged (SPEC T8)."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback

from chimera.ops import reduce
from chimera.ops.shards import is_sharded, local
from chimera.types import PositiveInt


class GradientNorms(Callback):
    """L2 norm by optimiser group; steps that are not logged cost nothing.

    Args:
        every: optimiser steps between two measurements.
    """

    def __init__(self, *, every: PositiveInt = 10) -> None:
        self.every = every
        self.norms: dict[str, float] = {}

    @torch.no_grad()
    def on_before_optimizer_step(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, optimizer: Any
    ) -> None:
        if (trainer.global_step + 1) % self.every:
            return
        sharded = False
        squares: dict[str, torch.Tensor] = {}  # a component may have a group without decay
        for group in optimizer.param_groups:
            gradients = [p.grad for p in group["params"] if p.grad is not None]
            sharded = sharded or any(map(is_sharded, gradients))
            if gradients := local(gradients):
                each = torch.stack(torch._foreach_norm(gradients)).float().square().sum()
                name = str(group["name"])
                squares[name] = squares[name] + each if name in squares else each
        if squares:  # all in one transfer from the device
            sums = torch.stack([*squares.values()])
            norms = (reduce.total(sums) if sharded else sums).sqrt().tolist()
            self.norms = dict(zip(squares, norms, strict=True))

    def chart(self) -> dict[str, float]:
        """`grad_norm/<component>` of the last measurement."""
        return {f"grad_norm/{name}": norm for name, norm in self.norms.items()}
