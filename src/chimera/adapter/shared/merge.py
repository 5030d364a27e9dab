"""Merge adapters into the weights of a model, or prune them to their directions that are not zero.

W' = W + ΔW is exact where the layer computes W x and nothing else. A quantised layer does not: it
rounds W, and reads x through a norm or grid of its own; a block-diagonal one has no room for it.
There the update stays beside the layer.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from chimera.adapter.shared.low_rank import Adapted, LowRank, adapted, substitute


class Merged(NamedTuple):
    """Names of layers whose update is in their weight, and of the others with the reason."""

    merged: list[str]
    kept: dict[str, str]

    def __str__(self) -> str:
        if not self.kept:
            return f"{len(self.merged)} updates merged into their weights"
        why = "; ".join(sorted(set(self.kept.values())))
        return f"{len(self.merged)} updates merged, {len(self.kept)} kept beside their layer: {why}"


@torch.no_grad()
def merge(model: nn.Module) -> Merged:
    """Add every update to the weight it stands beside, in place, wherever that is exact."""
    merged: list[str] = []
    kept: dict[str, str] = {}
    plain: dict[nn.Module, nn.Module] = {}
    for name, layer in adapted(model).items():
        whole = _merged(layer)
        if whole is None:
            kept[name] = f"the weight of a {type(layer.base).__name__} cannot take it up exactly"
        else:
            plain[layer] = whole
            merged.append(name)
    substitute(model, plain)
    return Merged(merged, kept)


def _merged(layer: Adapted) -> nn.Module | None:
    base: Any = layer.base
    delta = layer.update.delta()
    if hasattr(base, "nx"):  # transformers' Conv1D holds its weight the other way round
        base.weight.copy_(_sum(base.weight, delta.T))
    elif isinstance(base, nn.Linear) and type(base).forward is nn.Linear.forward:
        base.weight.copy_(_sum(base.weight, delta))
    else:
        return None
    return base


def _sum(weight: Tensor, delta: Tensor) -> Tensor:
    """In the wider of both dtypes, so that it is rounded once."""
    return weight + delta.to(torch.promote_types(weight.dtype, delta.dtype))


@torch.no_grad()
def prune(model: nn.Module) -> dict[str, int]:
    """Leave of every update the directions that are not zero, in place; returns the ranks by layer.

    What is left is a LoRA of that rank, gates and singular values multiplied into B; a layer whose
    directions are all zero is itself again.
    """
    ranks: dict[str, int] = {}
    plain: dict[nn.Module, nn.Module] = {}
    for name, layer in adapted(model).items():
        which = layer.update.alive()
        ranks[name] = int(which.sum())
        if ranks[name]:
            layer.update = _pruned(layer, which)
        else:
            plain[layer] = layer.base
    substitute(model, plain)
    return ranks


def _pruned(layer: Adapted, which: Tensor) -> LowRank:
    old = layer.update
    m = old.middle()
    new = LowRank(layer.base, int(which.sum()), old.scale, old.dropout)
    new.A = nn.Parameter(old.A[which], old.A.requires_grad)
    new.B = nn.Parameter((old.B if m is None else old.B * m)[:, which], old.B.requires_grad)
    return new.train(old.training)
