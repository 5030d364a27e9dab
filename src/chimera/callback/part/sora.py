"""SoRA in training: a subgradient before a step, a proximal step after it (SPEC A3)."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
import torch

from chimera.callback.part.update import OnUpdate


class GateUpdate(OnUpdate):
    """Runs the gates' own updates before and after each optimiser step, at that step's rate.

    The subgradient is part of the gradient norm and of clipping, as that of a loss term is. Logs
    `gate_sparsity`, the share of zeros, and `gates_alive`, the mean number of nonzero gates per
    layer. It has no state: a resumed run needs the gates alone.

    Args:
        show: log these two numbers.
    """

    method = "after_step"

    def __init__(self, *, show: bool = True) -> None:
        self.show = show
        self._count = 0

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        super().on_train_start(trainer, pl_module)
        self._count = sum(gate.g.numel() for gate in self.modules)
        of = {id(p): g for g in trainer.optimizers[0].param_groups for p in g["params"]}
        self._groups = [of[id(gate.g)] for gate in self.modules]

    def on_train_batch_start(self, *_: Any) -> None:
        # The schedule changes the rates right after the step: read them before.
        self._rates = [float(group["lr"]) for group in self._groups]

    def on_before_optimizer_step(self, *_: Any) -> None:
        for gate in self.modules:
            gate.before_step(self._count)

    def on_update(self, trainer: pl.Trainer, pl_module: Any, outputs: Any, batch: Any) -> None:
        for gate, rate in zip(self.modules, self._rates, strict=True):
            gate.after_step(rate)

    @torch.no_grad()
    def chart(self) -> dict[str, float]:
        """`gate_sparsity` and `gates_alive`; see `callback.log.metrics`."""
        if not self.show or not self.modules:
            return {}
        zeros = float(torch.cat([gate.g for gate in self.modules]).eq(0).float().mean())
        alive = (1 - zeros) * (self._count / len(self.modules))
        return {"stats/gate_sparsity": zeros, "stats/gates_alive": alive}
