"""Sparse low-rank adaptation (SPEC A3, E5; SAIDL 3.3-3.6, arXiv 2311.11696).

    y = W x + (α/r)·B (g ⊙ A x),   A Kaiming, B = 0, g ~ N(0, 1) or 1
    L = L₀ + λ Σ_k ‖g_k‖₁

    proximal   after the optimiser's step on L₀:  g ← sign(g)·max(|g| − t, 0)
               lr_lambda  t = η λ, η the rate of the step (SAIDL 3.4)
               xi         t = ξ, whatever the rate (the authors' code)
    sgd_l1     before it:  ∂L/∂g ← ∂L₀/∂g + λ sign(g), which lands on zero only by chance

A gate at zero deletes its direction. The authors' code adds μ·mean |g| over all gates to the loss
besides; `penalty` is that μ. Gates are an optimiser group of their own, `gate`, without decay.
"""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from chimera.adapter.shared.inject import inject
from chimera.adapter.shared.low_rank import LowRank
from chimera.contract import NonNegativeFloat, PositiveFloat, PositiveInt, ProperFraction
from chimera.errors import UserError
from chimera.ops.low_rank import soft_threshold

Update = Literal["proximal", "sgd_l1"]
Threshold = Literal["lr_lambda", "xi"]


class Gate(nn.Module):
    """g and how it is made sparse; `callback.part.sora` calls it around each optimiser step."""

    component = "gate"

    def __init__(
        self,
        g: Float[Tensor, " r"],
        *,
        update: Update,
        threshold: Threshold,
        l1: float,
        xi: float,
        penalty: float,
    ) -> None:
        super().__init__()
        if update == "sgd_l1" and threshold == "xi":
            raise UserError(
                "adapter.threshold=xi belongs to adapter.update=proximal; sgd_l1 thresholds nothing"
            )
        self.g = nn.Parameter(g)
        self.update, self.threshold = update, threshold
        self.l1, self.xi, self.penalty = l1, xi, penalty

    def before_step(self, gates: int) -> None:
        """Add the subgradient of what is penalised in the loss; `gates`: of the whole model."""
        slope = self.penalty / gates + (self.l1 if self.update == "sgd_l1" else 0.0)
        if slope and self.g.grad is not None:
            self.g.grad.add_(self.g.detach().sign(), alpha=slope)

    @torch.no_grad()
    def after_step(self, lr: float) -> None:
        """The proximal step; none where the optimiser's own was left out."""
        if self.update == "proximal" and self.g.grad is not None:
            self.g.copy_(
                soft_threshold(self.g, self.xi if self.threshold == "xi" else lr * self.l1)
            )


class SoRA(LowRank):
    """(α/r)·B diag(g) A."""

    kind = "SORA"
    parts = ("A", "B", "gate")

    def __init__(
        self,
        base: nn.Module,
        r: int,
        scale: float,
        dropout: float,
        *,
        gates: Literal["normal", "ones"] = "normal",
        update: Update = "proximal",
        threshold: Threshold = "lr_lambda",
        l1: float = 0.01,
        xi: float = 3e-4,
        penalty: float = 0.0,
    ) -> None:
        super().__init__(base, r, scale, dropout)
        g = torch.ones(r, **self.options)
        if gates == "normal":
            nn.init.normal_(g)
        self.gate = Gate(g, update=update, threshold=threshold, l1=l1, xi=xi, penalty=penalty)

    def middle(self) -> Float[Tensor, " r"]:
        return self.gate.g

    @torch.no_grad()
    def read(self, tensors: dict[str, Tensor]) -> None:
        super().read(tensors)
        self.gate.g.copy_(tensors["gate"])

    def tensors(self) -> dict[str, Tensor]:
        return super().tensors() | {"lora_gate": self.gate.g.detach()}


def sora(
    model: nn.Module,
    *,
    r: PositiveInt = 8,
    alpha: PositiveFloat = 16.0,
    dropout: ProperFraction = 0.0,
    gates: Literal["normal", "ones"] = "normal",
    update: Update = "proximal",
    threshold: Threshold = "lr_lambda",
    l1: NonNegativeFloat = 0.01,
    xi: NonNegativeFloat = 3e-4,
    penalty: NonNegativeFloat = 0.0,
    targets: list[str] | None = None,
    train: list[str] | None = None,
) -> nn.Module:
    """SoRA: LoRA whose directions have gates that training drives to exactly zero.

    Args:
        model: frozen and wrapped in place.
        r: rank to begin with.
        alpha: α; the update is scaled by α/r.
        dropout: probability on the update's input.
        gates: what they start from.
        update, threshold: see above.
        l1: λ.
        xi: ξ.
        penalty: μ.
        targets: globs of linear layers; null: queries and values, or what stands for them.
        train: globs of modules that are trained in full; null: a classifier's head.
    """

    def make(base: nn.Module) -> SoRA:
        return SoRA(
            base, r, alpha / r, dropout, gates=gates, update=update, threshold=threshold,
            l1=l1, xi=xi, penalty=penalty,
        )  # fmt: skip

    return inject(model, make, targets, train)
