"""LoRA with a higher learning rate of B (LoRA+, arXiv 2402.12354).

    y = W x + (α/r)·B A x,   rate of B = ratio · rate of A

As `lora` otherwise. The ratio multiplies `optim.lr` and `optim.rates.adapter` for every B; the
table at the start of a run shows both rates. The paper takes 16, for wide models.
"""

from __future__ import annotations

from torch import nn

from chimera.adapter.shared.inject import inject
from chimera.adapter.shared.low_rank import LowRank
from chimera.contract import PositiveFloat, PositiveInt, ProperFraction


class FastB(LowRank):
    """LoRA update whose B has a rate of its own."""

    peft_type = "LORA_PLUS"
    file_type = "LORA"

    def __init__(
        self, base: nn.Module, r: int, scale: float, dropout: float, *, ratio: float = 1.0
    ) -> None:
        super().__init__(base, r, scale, dropout)
        self.rate_factors = {"B": ratio}


def lora_plus(
    model: nn.Module,
    *,
    r: PositiveInt = 8,
    alpha: PositiveFloat = 16.0,
    ratio: PositiveFloat = 16.0,
    dropout: ProperFraction = 0.0,
    targets: list[str] | None = None,
    train: list[str] | None = None,
) -> nn.Module:
    """LoRA+: LoRA whose B learns faster than its A.

    Args:
        model: frozen and changed in place.
        r: rank.
        alpha: α; the update is scaled by α/r.
        ratio: rate of B over that of A.
        dropout: dropout probability of the update's input.
        targets: globs of linear layers; null for queries and values or their equivalents.
        train: globs of modules that are trained fully; null for a classifier's head.
    """

    def make(base: nn.Module) -> FastB:
        return FastB(base, r, alpha / r, dropout, ratio=ratio)

    return inject(model, make, targets, train)
