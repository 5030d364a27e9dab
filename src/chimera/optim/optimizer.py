"""Build the optimiser and the learning-rate schedule that `optim` names by `_target_`.

`optim.optimizer` builds any torch optimiser from parameter groups, `optim.schedule` a factor by
step (`chimera.optim.schedule`). Each is given those of the other keys of `optim` that it has an
argument for, unless its own node sets them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.optim.lr_scheduler import LambdaLR

from chimera.config.settings import Optim
from chimera.errors import UserError
from chimera.optim.groups import Group
from chimera.optim.schedule import warmup_cosine

#: Arguments of an optimiser that every parameter group sets by itself.
PER_GROUP = ("params", "lr", "weight_decay")


def build(
    settings: Optim, groups: Sequence[Group], total_steps: int, *, fused: bool
) -> tuple[torch.optim.Optimizer, LambdaLR]:
    """The optimiser of these groups and its schedule.

    Args:
        settings: of `optim`.
        groups: every trained parameter, with its rate and decay.
        total_steps: optimiser steps of the whole run.
        fused: let the optimiser update all parameters in one kernel, if it can.
    """
    make = settings.optimizer or torch.optim.AdamW
    offered = {"betas": tuple(settings.betas), "eps": settings.eps, "fused": fused}
    optimizer = make([group.options() for group in groups], **_taken(make, offered))
    plan = settings.schedule or warmup_cosine
    offered = {"warmup": settings.warmup, "min_ratio": settings.min_ratio}
    return optimizer, LambdaLR(optimizer, plan(total_steps, **_taken(plan, offered)))


def check(settings: Optim) -> None:
    """Refuse an optimiser node that sets what is set for each component.

    Raises:
        UserError: naming the key to set instead.
    """
    for key in getattr(settings.optimizer, "keywords", {}):
        if key in PER_GROUP:
            raise UserError(
                f"optim.optimizer.{key} is set for each component; use optim.lr and optim.rates, or"
                " optim.weight_decay and optim.decays"
            )


def _taken(function: Callable[..., Any], offered: dict[str, Any]) -> dict[str, Any]:
    """Those of the offered arguments that a function has, and that a partial does not fix."""
    fixed = getattr(function, "keywords", {})
    names = inspect.signature(function).parameters
    return {key: value for key, value in offered.items() if key in names and key not in fixed}
