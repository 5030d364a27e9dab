"""Every parameter in exactly one optimiser group: a rate and a decay per component (SPEC T1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn

from chimera.config.settings import Optim


@dataclass(frozen=True)
class Group:
    """The parameters of one component, what they are trained with, how many they are."""

    component: str
    lr: float
    weight_decay: float
    parameters: list[nn.Parameter]

    @property
    def count(self) -> int:
        return sum(p.numel() for p in self.parameters)

    def options(self) -> dict[str, Any]:
        """As torch's optimisers take it."""
        return {
            "params": self.parameters,
            "lr": self.lr,
            "weight_decay": self.weight_decay,
            "name": self.component,
        }


def components(model: nn.Module) -> dict[str, str]:
    """Parameter name to the component that owns it: the innermost module that names one.

    A table shared by embedding and head counts once, where it is found first.
    """
    owner: dict[str, str] = {}

    def walk(module: nn.Module, prefix: str, component: str) -> None:
        component = getattr(module, "component", component)
        for name, _ in module.named_parameters(recurse=False):
            owner[prefix + name] = component
        for name, child in module.named_children():
            walk(child, f"{prefix}{name}.", component)

    walk(model, "", "other")
    unique = {name for name, _ in model.named_parameters()}
    return {name: component for name, component in owner.items() if name in unique}


def groups(model: nn.Module, settings: Optim) -> list[Group]:
    """Trainable parameters by component, in the order in which the model names them.

    A rate or decay for a component that the model does not have is no error: the same table of
    rates serves every combination.
    """
    owner = components(model)
    by_component: dict[str, list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            by_component.setdefault(owner[name], []).append(parameter)
    return [
        Group(
            component,
            settings.lr * settings.rates.get(component, 1.0),
            settings.decays.get(component, settings.weight_decay),
            parameters,
        )
        for component, parameters in by_component.items()
    ]
