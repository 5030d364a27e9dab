"""Build the optimiser and the learning-rate schedule that `optim` names by `_target_`.

`optim.optimizer` is any torch optimiser of parameter groups; `optim.schedule` is a function in
`chimera.optim.schedule`. Both get the keys of `optim` that their signatures name, unless their YAML
nodes set the arguments.
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
from chimera.optim.schedule import Factor, warmup_cosine

#: Arguments of an optimiser that each parameter group sets.
PER_GROUP = ("params", "lr", "weight_decay")


def build(
    settings: Optim, groups: Sequence[Group], total_steps: int, *, fused: bool
) -> tuple[torch.optim.Optimizer, LambdaLR]:
    """Build the optimiser and its schedule.

    Args:
        settings: values of `optim`.
        groups: all trained parameters, with their rates and decays.
        total_steps: optimiser steps of the whole run.
        fused: update all parameters in one kernel, if the optimiser has this option.
    """
    make_optimizer = settings.optimizer or torch.optim.AdamW
    defaults = {"betas": tuple(settings.betas), "eps": settings.eps, "fused": fused}
    optimizer = make_optimizer(
        [group.options() for group in groups], **_accepted(make_optimizer, defaults)
    )
    return optimizer, LambdaLR(optimizer, rate_factor(settings, total_steps))


def rate_factor(settings: Optim, total_steps: int) -> Factor:
    """Build the schedule: the factor on all rates by the number of steps taken.

    Args:
        settings: values of `optim`.
        total_steps: optimiser steps of the whole run.
    """
    make_schedule = settings.schedule or warmup_cosine
    defaults = {"warmup": settings.warmup, "min_ratio": settings.min_ratio}
    factor: Factor = make_schedule(total_steps, **_accepted(make_schedule, defaults))
    return factor


def check(settings: Optim) -> None:
    """Reject an optimiser node that sets arguments of parameter groups.

    Raises:
        UserError: with the keys to set instead.
    """
    for key in getattr(settings.optimizer, "keywords", {}):
        if key in PER_GROUP:
            raise UserError(
                f"optim.optimizer.{key} is set for each component; use optim.lr and optim.rates, or"
                " optim.weight_decay and optim.decays"
            )


def _accepted(function: Callable[..., Any], defaults: dict[str, Any]) -> dict[str, Any]:
    """Arguments among `defaults` that the function has and that a partial does not fix."""
    fixed = getattr(function, "keywords", {})
    names = inspect.signature(function).parameters
    return {key: value for key, value in defaults.items() if key in names and key not in fixed}
