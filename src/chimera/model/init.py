"""Initialise weights: normal for linear layers and embeddings, residual outputs scaled or not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from chimera.contract import FFN, Mixer

if TYPE_CHECKING:  # an exported folder has no settings classes
    from chimera.config.settings import Model as ModelSettings

#: Roles of linear layers whose output is added to the residual stream.
RESIDUAL = frozenset({"out", "down"})


@torch.no_grad()
def initialise(model: nn.Module, settings: ModelSettings) -> None:
    """Initialise linear layers (with a `role`) and embeddings of the quantiser's factories.

    Other parameters (Mamba's Δ) keep the values of their constructors. A component that needs
    special values in a factory's layer sets them in `reset_parameters`, called last.
    """
    std = settings.init_std or settings.dim**-0.5
    branches = 2 * settings.depth * settings.loops
    inner, residual = {
        "normal": (1.0, 1.0),
        "scaled": (1.0, branches**-0.5),
        "fixup": (branches**-0.5, 0.0),
    }[settings.residual_init]
    for module in model.modules():
        role = getattr(module, "role", None)
        weight = getattr(module, "weight", None)
        if not isinstance(weight, nn.Parameter) or not (role or hasattr(module, "table")):
            continue
        factor = residual if role in RESIDUAL else inner
        nn.init.normal_(weight, std=std * factor if role else settings.embedding_std or std)
        bias = getattr(module, "bias", None)
        if isinstance(bias, nn.Parameter):
            nn.init.zeros_(bias)
    for module in model.modules():
        if isinstance(module, Mixer | FFN):
            module.reset_parameters()
