"""Initial weights: normal for every linear and embedding, residual outputs scaled by option."""

from __future__ import annotations

import torch
from torch import nn

from chimera.config.settings import Model as ModelSettings
from chimera.contract import FFN, Mixer

#: Roles of the linear layers that write to the residual stream.
RESIDUAL = frozenset({"out", "down"})


@torch.no_grad()
def initialise(model: nn.Module, settings: ModelSettings) -> None:
    """Initialise the layers of the quantiser's factories: linear ones (with a `role`), embeddings.

    Parameters that a part makes itself (Mamba's Δ) keep the values of its constructor. A part that
    needs other weights in a factory's layer sets them in its `reset_parameters`, called last.
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
        factor = residual if role in RESIDUAL else inner if role else 1.0
        nn.init.normal_(weight, std=std * factor)
        bias = getattr(module, "bias", None)
        if isinstance(bias, nn.Parameter):
            nn.init.zeros_(bias)
    for module in model.modules():
        if isinstance(module, Mixer | FFN):
            module.reset_parameters()
