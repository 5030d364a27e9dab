"""Divide parameters into optimiser groups, with a rate and weight decay per component (SPEC T1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn

from chimera.config.settings import Optim


@dataclass(frozen=True)
class Group:
    """Parameters of one component, their learning rate and weight decay."""

    component: str
    lr: float
    weight_decay: float
    parameters: list[nn.Parameter]

    @property
    def count(self) -> int:
        return sum(p.numel() for p in self.parameters)

    def options(self) -> dict[str, Any]:
        """Parameter group in the format of torch's optimisers."""
        return {
            "params": self.parameters,
            "lr": self.lr,
            "weight_decay": self.weight_decay,
            "name": self.component,
        }


def components(model: nn.Module) -> dict[str, str]:
    """Map parameter names to components; the innermost module with `component` decides.

    A table shared by embedding and head counts once, under its first name.
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
    """Group trainable parameters by component, in the order of the model's parameters.

    Settings may have rates and decays of components that the model does not have: one table of
    rates serves all models.
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
