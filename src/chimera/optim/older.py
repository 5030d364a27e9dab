"""Bring the optimiser's and the schedule's state of a checkpoint of numerics 1 into today's form.

Numerics 1 had one group per component, and parameters of one number without an axis.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from chimera.optim.groups import Group


def upgrade(checkpoint: dict[str, Any], groups: Sequence[Group]) -> None:
    """Change the states of optimiser and schedule in place; those in today's form are left alone.

    Args:
        checkpoint: of Lightning.
        groups: of the model's trained parameters, as its optimiser is built with.
    """
    component = [group.component for group in groups]
    for state in checkpoint.get("optimizer_states") or ():
        saved = state["param_groups"]
        names = [group.get("name") for group in saved]
        if names == list(dict.fromkeys(component)) != component:
            _divide(state, groups)
            for schedule in checkpoint.get("lr_schedulers") or ():
                for key in ("base_lrs", "_last_lr"):
                    rates = dict(zip(names, schedule[key], strict=True))
                    schedule[key] = [rates[name] for name in component]
                schedule["lr_lambdas"] = [None] * len(component)
        parameters = [parameter for group in groups for parameter in group.parameters]
        for number, parameter in enumerate(parameters):
            of_one = state["state"].get(number, {}) if parameter.shape == (1,) else {}
            for key, value in of_one.items():
                if key != "step" and isinstance(value, Tensor) and value.ndim == 0:
                    of_one[key] = value.reshape(1)


def _divide(state: dict[str, Any], groups: Sequence[Group]) -> None:
    """Divide the groups of components into decayed and undecayed parameters."""
    old = {group["name"]: group for group in state["param_groups"]}
    numbers: dict[int, int] = {}  # place among the trained parameters -> number in the old state
    for name, saved in old.items():
        places = sorted(p for group in groups if group.component == name for p in group.places)
        numbers |= dict(zip(places, saved["params"], strict=True))
    new_states, new_groups, number = {}, [], 0
    for group in groups:
        count = len(group.parameters)
        decay = {"weight_decay": group.weight_decay} if group.undecayed else {}
        new_groups.append(
            {**old[group.component], **decay, "params": list(range(number, number + count))}
        )
        for place in group.places:
            if numbers[place] in state["state"]:
                new_states[number] = state["state"][numbers[place]]
            number += 1
    state["state"], state["param_groups"] = new_states, new_groups
