"""Sparse low-rank adaptation (SPEC A3, E5; SAIDL 3.3-3.6, arXiv 2311.11696).

    y = W x + (α/r)·B (g ⊙ A x),   A Kaiming, B = 0, g ~ N(0, 1) or 1
    L = L₀ + λ Σ_k ‖g_k‖₁

    proximal   after the optimiser's step on L₀:  g ← sign(g)·max(|g| − t, 0)
               lr_lambda  t = η λ, η the learning rate of the step (SAIDL 3.4)
               xi         t = ξ, for any learning rate (the authors' code)
    sgd_l1     before the step:  ∂L/∂g ← ∂L₀/∂g + λ sign(g), which reaches zero only by chance;
               sign(0) = `sign_at_zero`: a gate at 0 stays there with 0 and leaves it with ±1 (3.6)

A gate of zero removes its direction. The authors' code also adds μ·mean |g| over all gates to the
loss; `penalty` is μ. Gates are a separate optimiser group, `gate`, without weight decay.
"""

from __future__ import annotations

from typing import Any, Literal

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
SignAtZero = Literal[-1, 1]


class Gate(nn.Module):
    """Gates g and their sparse updates; `callback.part.sora` calls both methods at each step."""

    component = "gate"

    def __init__(
        self,
        g: Float[Tensor, " r"],
        *,
        update: Update = "proximal",
        threshold: Threshold = "lr_lambda",
        l1: float = 0.01,
        xi: float = 3e-4,
        penalty: float = 0.0,
        sign_at_zero: SignAtZero | None = None,
    ) -> None:
        super().__init__()
        if update == "sgd_l1" and threshold == "xi":
            raise UserError(
                "adapter.threshold=xi needs adapter.update=proximal; sgd_l1 has no threshold"
            )
        self.g = nn.Parameter(g)
        self.update = update
        self.threshold = threshold
        self.l1 = l1
        self.xi = xi
        self.penalty = penalty
        self.sign_at_zero = sign_at_zero or 0

    def before_step(self, gates: int) -> None:
        """Add the subgradient of the penalties; `gates` is the number of gates of the model."""
        slope = self.penalty / gates + (self.l1 if self.update == "sgd_l1" else 0.0)
        if slope and self.g.grad is not None:
            g = self.g.detach()
            self.g.grad.add_(g.sign().masked_fill_(g == 0, self.sign_at_zero), alpha=slope)

    @torch.no_grad()
    def after_step(self, lr: float) -> None:
        """Apply the proximal step, unless the gates have no gradient."""
        if self.update == "proximal" and self.g.grad is not None:
            self.g.copy_(
                soft_threshold(self.g, self.xi if self.threshold == "xi" else lr * self.l1)
            )


class SoRA(LowRank):
    """Update (α/r)·B diag(g) A; `penalties` are those of `Gate`."""

    peft_type = "SORA"
    parts = ("A", "B", "gate")

    def __init__(
        self,
        base: nn.Module,
        r: int,
        scale: float,
        dropout: float,
        *,
        gates: Literal["normal", "ones"] = "normal",
        **penalties: Any,
    ) -> None:
        super().__init__(base, r, scale, dropout)
        g = torch.ones(r, **self.options)
        if gates == "normal":
            nn.init.normal_(g)
        self.gate = Gate(g, **penalties)

    def diagonal(self) -> Float[Tensor, " r"]:
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
    sign_at_zero: SignAtZero | None = None,
    targets: list[str] | None = None,
    train: list[str] | None = None,
) -> nn.Module:
    """SoRA: LoRA with a gate per direction; training sets gates to exactly zero.

    Args:
        model: frozen and changed in place.
        r: initial rank.
        alpha: α; the update is scaled by α/r.
        dropout: dropout probability of the update's input.
        gates: initial gates, drawn from N(0, 1) or ones.
        update, threshold: see above.
        l1: λ.
        xi: ξ.
        penalty: μ.
        sign_at_zero: subgradient of |g| at 0 for sgd_l1 (SPEC E15); None: 0.
        targets: globs of linear layers; null for queries and values or their equivalents.
        train: globs of modules that are trained fully; null for a classifier's head.
    """

    def make(base: nn.Module) -> SoRA:
        return SoRA(
            base, r, alpha / r, dropout, gates=gates, update=update, threshold=threshold,
            l1=l1, xi=xi, penalty=penalty, sign_at_zero=sign_at_zero,
        )  # fmt: skip

    return inject(model, make, targets, train)
