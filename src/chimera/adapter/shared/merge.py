"""Merge adapters into the weights of a model, or prune them to their nonzero directions.

W' = W + ΔW is exact only for layers that compute W x. A quantised layer rounds W and applies a norm
or grid to x; a block-diagonal layer cannot represent ΔW. The updates of such layers stay separate.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from chimera.adapter.shared.low_rank import Adapted, LowRank, adapted, substitute


class Merged(NamedTuple):
    """Names of merged layers, and of layers with a separate update, with the reason."""

    merged: list[str]
    kept: dict[str, str]

    def __str__(self) -> str:
        if not self.kept:
            return f"{len(self.merged)} updates merged into their weights"
        reasons = "; ".join(sorted(set(self.kept.values())))
        return f"{len(self.merged)} updates merged, {len(self.kept)} kept separate: {reasons}"


@torch.no_grad()
def merge(model: nn.Module) -> Merged:
    """Add each update to the weight of its layer, in place, where the result is exact."""
    merged: list[str] = []
    kept: dict[str, str] = {}
    replacements: dict[nn.Module, nn.Module] = {}
    for name, layer in adapted(model).items():
        weight = merged_weight(layer)
        if weight is None:
            kept[name] = f"merging into a {type(layer.base).__name__} is not exact"
        else:
            layer.weight.copy_(weight)
            replacements[layer] = layer.base
            merged.append(name)
    substitute(model, replacements)
    return Merged(merged, kept)


@torch.no_grad()
def merged_weight(layer: Adapted) -> Tensor | None:
    """W + ΔW, as wide as the wider of both, so that it is rounded once; None if not exact."""
    base: Any = layer.base
    delta = layer.update.delta()
    if hasattr(base, "nx"):  # transformers' Conv1D has the transposed weight
        delta = delta.T
    elif not (isinstance(base, nn.Linear) and type(base).forward is nn.Linear.forward):
        return None
    weight: Tensor = base.weight
    return weight + delta.to(torch.promote_types(weight.dtype, delta.dtype))


@torch.no_grad()
def prune(model: nn.Module) -> dict[str, int]:
    """Remove directions with m = 0 from every update, in place; return the new rank per layer.

    A pruned update is a LoRA of the new rank, with gates or singular values multiplied into B. A
    layer without nonzero directions loses its update.
    """
    ranks: dict[str, int] = {}
    replacements: dict[nn.Module, nn.Module] = {}
    for name, layer in adapted(model).items():
        nonzero = layer.update.nonzero_directions()
        ranks[name] = int(nonzero.sum())
        if layer.update.diagonal() is None:  # no direction to remove
            continue
        if ranks[name]:
            layer.update = _pruned(layer, nonzero)
        else:
            replacements[layer] = layer.base
    substitute(model, replacements)
    return ranks


def _pruned(layer: Adapted, nonzero: Tensor) -> LowRank:
    old = layer.update
    m = old.diagonal()
    new = LowRank(layer.base, int(nonzero.sum()), old.scale, old.dropout)
    new.A = nn.Parameter(old.A[nonzero], old.A.requires_grad)
    new.B = nn.Parameter((old.B if m is None else old.B * m)[:, nonzero], old.B.requires_grad)
    return new.train(old.training)
