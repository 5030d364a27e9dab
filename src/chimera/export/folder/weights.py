"""The tensors of an exported model: under the names of a model without adapters, each once."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from chimera.adapter.shared.low_rank import adapted


def bare(model: nn.Module) -> dict[str, Tensor]:
    """Tensors by their names without adapters, whose own are left out."""
    layers = adapted(model)
    tensors = {}
    for name, tensor in model.state_dict().items():
        if not name.startswith(tuple(f"{layer}.update." for layer in layers)):
            for layer in layers:
                name = name.replace(f"{layer}.base.", f"{layer}.")
            tensors[name] = tensor
    return tensors


def distinct(tensors: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Each storage once, and under which name the others are found."""
    first: dict[tuple[Any, ...], str] = {}
    tied: dict[str, str] = {}
    for name, tensor in tensors.items():
        place = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
        if tensor.numel() and place in first:
            tied[name] = first[place]
        first.setdefault(place, name)
    kept = {n: t.detach().cpu().contiguous() for n, t in tensors.items() if n not in tied}
    return kept, tied
