"""Low-rank adaptation (SPEC A1; SAIDL 3.3, arXiv 2106.09685).

    y = W x + (α/r)·B A x,   A [r i] uniform as in a linear layer (Kaiming), B [o r] = 0

W is frozen. Initially, ΔW = (α/r)·B A is 0.
"""

from __future__ import annotations

from torch import nn

from chimera.adapter.shared.inject import inject
from chimera.adapter.shared.low_rank import LowRank
from chimera.contract import PositiveFloat, PositiveInt, ProperFraction


def lora(
    model: nn.Module,
    *,
    r: PositiveInt = 8,
    alpha: PositiveFloat = 16.0,
    dropout: ProperFraction = 0.0,
    targets: list[str] | None = None,
    train: list[str] | None = None,
) -> nn.Module:
    """LoRA: trained low-rank update of frozen linear layers.

    Args:
        model: frozen and changed in place.
        r: rank.
        alpha: α; the update is scaled by α/r.
        dropout: dropout probability of the update's input.
        targets: globs of linear layers; null for queries and values or their equivalents.
        train: globs of modules that are trained fully; null for a classifier's head.
    """
    return inject(model, lambda base: LowRank(base, r, alpha / r, dropout), targets, train)
