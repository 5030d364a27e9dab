"""Initial weights: normal for every linear and embedding, residual outputs scaled by option."""

from __future__ import annotations

import torch
from torch import nn

from chimera.settings import Model as ModelSettings

#: Roles of the linear layers that write to the residual stream.
RESIDUAL = frozenset({"out", "down"})


@torch.no_grad()
def initialise(model: nn.Module, settings: ModelSettings) -> None:
    """Set all weights made by the quantiser's factories (they have a `role`) and all embeddings.

    A component that needs weights of its own kind (Mamba's Δ bias) defines `reset_parameters()`
    on itself; it is called last. What has neither keeps what its constructor gave it.
    """
    branches = 2 * settings.depth * settings.loops
    factor = {
        "normal": (1.0, 1.0),
        "scaled": (1.0, branches**-0.5),
        "fixup": (branches**-0.5, 0.0),
    }
    inner, residual = factor[settings.residual_init]
    for module in model.modules():
        role = getattr(module, "role", None)
        if role is not None:
            std = settings.init_std * (residual if role in RESIDUAL else inner)
            nn.init.normal_(module.weight, std=std)
            if getattr(module, "bias", None) is not None:
                nn.init.zeros_(module.bias)
        elif hasattr(module, "table") and isinstance(getattr(module, "weight", None), nn.Parameter):
            nn.init.normal_(module.weight, std=settings.init_std)
    for module in model.modules():
        if hasattr(module, "component") and hasattr(module, "reset_parameters"):
            own = type(module).reset_parameters
            if own.__module__.startswith("chimera."):
                module.reset_parameters()
