"""Weight-decomposed low-rank adaptation (DoRA, arXiv 2402.09353).

    y = m ⊙ (V x)/‖V‖ + b,   V = W + (α/r)·B A,   ‖V‖ [o]: length of each row, as a constant
    = c ⊙ W x + c ⊙ (α/r)·B A x + b,   c = m/‖V‖                                  (eq. 5, 4.3)

W is frozen; m is trained and begins as ‖W‖, B as 0, so that c = 1 at first. No gradient goes
through ‖V‖ (4.3 of the paper). With dropout the base's part keeps x whole. Of a quantised base W is
the latent weight, and W x what the base computes.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from chimera.adapter.shared.inject import inject
from chimera.adapter.shared.low_rank import LowRank, matrix
from chimera.contract import PositiveFloat, PositiveInt, ProperFraction
from chimera.ops.precision import autocast_off
from chimera.ops.shards import whole


class DoRA(LowRank):
    """Update of the direction of each row by B A, and of its length by m."""

    peft_type = "DORA"
    parts = ("A", "B", "magnitude_vector")
    undecayed = ("magnitude",)

    def __init__(self, base: nn.Module, r: int, scale: float, dropout: float) -> None:
        super().__init__(base, r, scale, dropout)
        self._base = [base]  # in a list, so that it is no part of this module
        self.magnitude = nn.Parameter(self._weight().detach().norm(dim=1).to(self.A.dtype))

    def _weight(self) -> Float[Tensor, "o i"]:
        return matrix(self._base[0]).to(self.A.dtype)

    def _ratio(self) -> Float[Tensor, " o"]:
        """c; its denominator is a constant of the gradient. A row of zeros has 1."""
        with autocast_off(self.A):  # c is near 1: half precision would hide it
            # `super()` in a `with` stops torch.compile.
            length = (self._weight() + LowRank.delta(self)).detach().norm(dim=1)
        return torch.where(length > 0, self.magnitude / length.where(length > 0, 1.0), 1.0)

    def delta(self) -> Float[Tensor, "o i"]:
        """c ⊙ V − W, the change of the weight."""
        weight = self._weight()
        return whole(self._ratio())[:, None] * (weight + super().delta()) - weight

    def added(self, x: Float[Tensor, "*b i"], y: Float[Tensor, "*b o"]) -> Float[Tensor, "*b o"]:
        base = self._base[0]
        ratio = self._ratio()
        bias: Any = getattr(base, "bias", None)
        product = y if bias is None else y - bias
        changed = (ratio - 1) * product + ratio * self(x)
        return y + changed.to(y.dtype)

    @torch.no_grad()
    def read(self, tensors: dict[str, Tensor]) -> None:
        super().read(tensors)
        self.magnitude.copy_(tensors["magnitude_vector"])

    def tensors(self) -> dict[str, Tensor]:
        return super().tensors() | {"lora_magnitude_vector": self.magnitude.detach()}

    @classmethod
    def settings(cls, r: int) -> dict[str, Any]:
        return {"peft_type": "LORA", "use_dora": True}


def dora(
    model: nn.Module,
    *,
    r: PositiveInt = 8,
    alpha: PositiveFloat = 16.0,
    dropout: ProperFraction = 0.0,
    targets: list[str] | None = None,
    train: list[str] | None = None,
) -> nn.Module:
    """DoRA: low-rank update of the direction of each weight row, and a trained length.

    Args:
        model: frozen and changed in place.
        r: rank.
        alpha: α; the update is scaled by α/r.
        dropout: dropout probability of the low-rank update's input.
        targets: globs of linear layers; null for queries and values or their equivalents.
        train: globs of modules that are trained fully; null for a classifier's head.
    """
    return inject(model, lambda base: DoRA(base, r, alpha / r, dropout), targets, train)
