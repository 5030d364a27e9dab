"""Adaptive budget allocation (SPEC A2, E9; SAIDL 3.3, arXiv 2303.10512).

    y = W x + α/(r + 1e-5)·P (Λ ⊙ Q x),   Q [r i], P [o r] ~ N(0, 0.02²), Λ [r] = 0
    R(P, Q) = ‖PᵀP − I‖² + ‖QQᵀ − I‖²                          (Frobenius norms)
    I ← |w·∂L/∂w|;  Ī ← β₁Ī + (1−β₁)I;  U ← β₂U + (1−β₂)|I − Ī|;  s(w) = Ī·U
    S_k = s(Λ_k) + mean_j s(P_jk) + mean_j s(Q_kj)

The 1e-5 is the authors'. The callback in this adapter's YAML ranks the directions of all layers by
S and sets Λ of the others to zero; without the callback, all directions stay. Ī, U and the choice
are buffers, so that checkpoints save them.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from chimera.adapter.shared.inject import inject
from chimera.adapter.shared.low_rank import LowRank
from chimera.contract import PositiveFloat, PositiveInt, ProperFraction
from chimera.ops.shards import like, whole

Penalty = Literal["squared", "norm"]


class SVDLike(LowRank):
    """Update α/(r + 1e-5)·P Λ Q, with A = Q and B = P; pruned directions have Λ = 0."""

    peft_type = "ADALORA"
    parts = ("A", "B", "E")
    kept: Tensor

    def __init__(self, base: nn.Module, r: int, alpha: float, dropout: float) -> None:
        super().__init__(base, r, alpha / (r + 1e-5), dropout)
        self.E = nn.Parameter(torch.zeros(r, **self.options))
        for factor in (self.A, self.B):
            nn.init.normal_(factor, std=0.02)
        for name in ("A", "B", "E"):
            for statistic in ("mean", "spread"):
                self.register_buffer(f"{statistic}_{name}", torch.zeros_like(getattr(self, name)))
        self.register_buffer("kept", torch.ones(r, dtype=torch.bool, device=self.E.device))

    def diagonal(self) -> Float[Tensor, " r"]:
        return self.E

    @property
    def alpha(self) -> float:
        return self.scale * (self.r + 1e-5)

    @classmethod
    def from_file(
        cls, base: nn.Module, tensors: dict[str, Tensor], config: dict[str, Any], alpha: float
    ) -> SVDLike:
        update = cls(base, len(tensors["A"]), alpha, config.get("lora_dropout") or 0.0)
        update.scale = alpha / (config["init_r"] + 1e-5)  # peft keeps the scale when ranks shrink
        return update

    @torch.no_grad()
    def read(self, tensors: dict[str, Tensor]) -> None:
        super().read(tensors)
        self.E.copy_(tensors["E"].flatten())

    def tensors(self) -> dict[str, Tensor]:
        a, b, e = (part.detach() for part in (self.A, self.B, self.E))
        return {"lora_A": a, "lora_B": b, "lora_E": e[:, None]}

    @classmethod
    def settings(cls, r: int) -> dict[str, Any]:
        # peft requires a schedule (total_step), also for inference.
        return {"r": 8, "init_r": r, "total_step": 1, "rank_pattern": None}

    @torch.no_grad()
    def add_penalty(self, weight: float, form: Penalty) -> Float[Tensor, ""]:
        """Add the gradient of weight·R (of weight·Σ‖·‖ for `norm`) to P and Q; return R."""
        a = whole(self.A)
        b = whole(self.B)
        total = a.new_zeros(())
        for parameter, factor, square, left in (
            (self.A, a, a @ a.mT, True),
            (self.B, b, b.mT @ b, False),
        ):
            off = square.sub_(torch.eye(self.r, dtype=square.dtype, device=square.device))
            size = off.norm()
            total += size.square() if form == "squared" else size
            if (grad := parameter.grad) is not None:
                slope = off * 4 if form == "squared" else off * (2 / size.clamp(min=1e-30))
                grad.add_(like(slope @ factor if left else factor @ slope, grad), alpha=weight)
        return total

    @torch.no_grad()
    def observe(self, beta1: float, beta2: float) -> None:
        """Update Ī and U, the mean sensitivity of each entry and its variation."""
        for name in ("A", "B", "E"):
            parameter = getattr(self, name)
            if parameter.grad is None:
                continue
            mean = getattr(self, f"mean_{name}")
            spread = getattr(self, f"spread_{name}")
            sensitivity = whole(parameter * parameter.grad).abs()
            mean.lerp_(sensitivity, 1 - beta1)
            spread.lerp_((sensitivity - mean).abs_(), 1 - beta2)

    def forget(self) -> None:
        """Set Ī and U to zero, after the last choice of directions."""
        for name in ("A", "B", "E"):
            getattr(self, f"mean_{name}").zero_()
            getattr(self, f"spread_{name}").zero_()

    def scores(self) -> Float[Tensor, " r"]:
        """Importance S of each direction."""
        a, b, e = (getattr(self, f"mean_{n}") * getattr(self, f"spread_{n}") for n in "ABE")
        return e + (a.mean(1) + b.mean(0))

    @torch.no_grad()
    def keep(self, directions: Bool[Tensor, " r"] | None = None) -> None:
        """Set Λ of all other directions to zero; None for the directions of the last choice."""
        if directions is not None:
            self.kept.copy_(directions)
        self.E.masked_fill_(like(~self.kept, self.E), 0.0)


def adalora(
    model: nn.Module,
    *,
    r: PositiveInt = 12,
    alpha: PositiveFloat = 16.0,
    dropout: ProperFraction = 0.0,
    targets: list[str] | None = None,
    train: list[str] | None = None,
) -> nn.Module:
    """AdaLoRA: low-rank update in the form of an SVD; layers get ranks by importance.

    Args:
        model: frozen and changed in place.
        r: initial rank; the callback's `target_r` is the final average rank.
        alpha: α; the update is scaled by α/r.
        dropout: dropout probability of the update's input.
        targets: globs of linear layers; null for queries and values or their equivalents.
        train: globs of modules that are trained fully; null for a classifier's head.
    """
    return inject(model, lambda base: SVDLike(base, r, alpha, dropout), targets, train)
