"""AdaLoRA's rank budget: importance, a cubic schedule, pruning over all layers (SPEC A2).

    b(t) = b₀                                          t ≤ tᵢ
           b_T + (b₀ − b_T)(1 − (t − tᵢ)/(T − t_f − tᵢ))³      between
           b_T                                         t ≥ T − t_f, and the ranks are fixed

t counts optimiser steps from 0, T is the length of the run. The adapter's YAML names this callback,
which finds updates whose rank-one directions can be scored and pruned by their method
`add_penalty`.
"""

from __future__ import annotations

from typing import Any, Literal

import lightning.pytorch as pl
import torch
from torch import Tensor, nn

from chimera.callback import parts_with
from chimera.callback.part.update import OnUpdate
from chimera.errors import UserError
from chimera.types import NonNegativeFloat, PositiveInt, ProperFraction


class RankBudget(OnUpdate):
    """Prunes directions over all layers until the budget is reached.

    The penalty's gradient is part of the gradient norm and of clipping, as that of a loss term is.

    Args:
        target_r: rank left per layer, on average.
        initial: share of the run's steps before the budget shrinks, tᵢ/T.
        final: share of the steps after those that train with fixed ranks, t_f/(T − tᵢ).
        every: steps between prunings.
        beta1, beta2: decay of the means of the sensitivity and of its variation.
        orth: γ, weight of the penalty, which is the mean over all P and Q. With the paper's sum γ
            would depend on their number.
        penalty: `squared` norms, as in the paper, or the `norm` itself, as in the authors' code.
    """

    def __init__(
        self,
        *,
        target_r: PositiveInt = 8,
        initial: ProperFraction = 0.1,
        final: ProperFraction = 0.3,
        every: PositiveInt = 1,
        beta1: ProperFraction = 0.85,
        beta2: ProperFraction = 0.85,
        orth: NonNegativeFloat = 0.5,
        penalty: Literal["squared", "norm"] = "squared",
    ) -> None:
        self.target_r = target_r
        self.initial = initial
        self.final = final
        self.every = every
        self.beta1 = beta1
        self.beta2 = beta2
        self.orth = orth
        self.penalty = penalty
        self.updates: list[Any] = []
        self._penalty: Tensor | None = None

    def begin(self, model: nn.Module, steps: int) -> None:
        """Find the updates, and compute the schedule for this many optimiser steps."""
        self.updates = parts_with(model, "add_penalty")
        most = min((u.r for u in self.updates), default=self.target_r)
        if self.target_r > most:
            raise UserError(
                f"adapter.callbacks.adalora.target_r={self.target_r} is above adapter.r={most}"
            )
        self.start = round(self.initial * steps)
        self.stop = steps - max(1, round(self.final * (steps - self.start)))
        self.first = sum(u.r for u in self.updates)
        self.last = self.target_r * len(self.updates)
        kept = sum(int(u.kept.sum()) for u in self.updates)
        # True from the start in a run that is resumed after the last choice.
        self.fixed = kept <= self.last < self.first

    def budget(self, step: int) -> int:
        """Number of directions, over all layers, that may stay at this step."""
        if step <= self.start:
            return self.first
        left = max(0.0, 1 - (step - self.start) / (self.stop - self.start))
        return int((self.first - self.last) * left**3 + self.last)

    def penalise(self) -> None:
        """Add the gradient of the penalty; called before the optimiser's step."""
        weight = self.orth / (2 * len(self.updates)) if self.updates else 0.0
        if weight:
            penalties = [u.add_penalty(weight, self.penalty) for u in self.updates]
            self._penalty = torch.stack(penalties).sum() / (2 * len(penalties))

    def allocate(self, step: int) -> None:
        """Update the importance and prune; called after the step, with its gradients."""
        if step > self.stop and self.fixed:
            for update in self.updates:
                update.keep()
            return
        if step != self.stop:
            for update in self.updates:
                update.observe(self.beta1, self.beta2)
        if step >= self.stop or (step > self.start and step % self.every == 0):
            self._choose(self.first - self.budget(step))
        if step >= self.stop and self.observed():  # later than `stop` if that step was left out
            self.fixed = True
            for update in self.updates:
                update.forget()

    def observed(self) -> bool:
        """Whether any direction has an importance: not before the first step that was observed."""
        return any(bool(update.scores().any()) for update in self.updates)

    def _choose(self, less: int) -> None:
        """Prune the `less` directions of lowest importance, over all layers."""
        scores = [update.scores() for update in self.updates]
        if less and self.observed():
            limit = torch.cat(scores).kthvalue(less).values
            for update, score in zip(self.updates, scores, strict=True):
                update.keep(score > limit)

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        super().on_train_start(trainer, pl_module)
        self.begin(pl_module, trainer.max_steps)

    def on_train_batch_start(self, trainer: pl.Trainer, *_: Any) -> None:
        self._before = trainer.global_step

    def on_before_optimizer_step(self, *_: Any) -> None:
        self.penalise()

    @torch.no_grad()
    def on_update(self, trainer: pl.Trainer, pl_module: Any, outputs: Any, batch: Any) -> None:
        if self.updates:
            self.allocate(trainer.global_step - 1)

    def chart(self) -> dict[str, float]:
        """The budget of the last step and the penalty; see `callback.log.metrics`."""
        numbers = {"stats/rank_budget": float(self.budget(self._before))}
        if self._penalty is not None:
            numbers["stats/orthogonality"] = float(self._penalty)
        return numbers
