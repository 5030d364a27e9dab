"""Head only: the floor of a comparison of adapters, what the frozen features give by themselves.

No layer gets an update; W stays for every W of the body.
"""

from __future__ import annotations

from torch import nn

from chimera.adapter.shared.inject import HEADS, trainable
from chimera.errors import UserError


def head_only(model: nn.Module, *, train: list[str] | None = None) -> nn.Module:
    """Head only: train the head, freeze everything else.

    Args:
        model: frozen and changed in place.
        train: globs of modules and parameters that are trained; null for a classifier's head.

    Raises:
        UserError: a glob matches nothing, or the model has no classifier's head.
    """
    parameters = trainable(model, train)
    if not parameters:
        raise UserError(
            f"adapter=head_only: this model has no {' or '.join(HEADS)}; name what to train with"
            " adapter.train=[<glob>]"
        )
    model.requires_grad_(False)
    for parameter in parameters:
        parameter.requires_grad_(True)
    return model
