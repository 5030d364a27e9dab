"""Low-rank adaptation (SPEC A1; SAIDL 3.3, arXiv 2106.09685).

    y = W x + (α/r)·B A x,   A [r i] uniform as a linear layer's own (Kaiming), B [o r] = 0

W stays frozen; ΔW = (α/r)·B A is 0 at the start.
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
    """LoRA: a trained product of two thin matrices beside frozen linear layers.

    Args:
        model: frozen and wrapped in place.
        r: rank.
        alpha: α; the update is scaled by α/r.
        dropout: probability on the update's input.
        targets: globs of linear layers; null: queries and values, or what stands for them.
        train: globs of modules that are trained in full; null: a classifier's head.
    """
    return inject(model, lambda base: LowRank(base, r, alpha / r, dropout), targets, train)
