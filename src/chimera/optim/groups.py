"""Divide parameters into optimiser groups, with a rate and weight decay per component (SPEC T1).

A module names parameters of its own that weight decay leaves alone in its class attribute
`undecayed`: rates of decay, biases of gates, slopes, where zero is no neutral value. They form a
second group of their component, with the component's rate and weight decay 0. `rate_factors` of a
module multiplies the rate of some of its own parameters (LoRA+); each factor is a group.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn

from chimera.config.settings import Optim


@dataclass(frozen=True)
class Group:
    """Parameters of one component, their learning rate and weight decay.

    Args:
        component: whose parameters they are.
        lr: peak learning rate.
        weight_decay: 0 in a group of `undecayed` parameters.
        parameters: in the order of the model.
        undecayed: names, without modules, of the parameters that decay leaves alone; else empty.
        places: of each parameter among the trained parameters of the model.
    """

    component: str
    lr: float
    weight_decay: float
    parameters: list[nn.Parameter]
    undecayed: tuple[str, ...] = ()
    places: tuple[int, ...] = ()

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


def undecayed(model: nn.Module) -> set[str]:
    """Names of the parameters that their modules exempt from weight decay."""
    return {
        f"{prefix}.{name}" if prefix else name
        for prefix, module in model.named_modules()
        for name in getattr(module, "undecayed", ())
    }


def rate_factors(model: nn.Module) -> dict[str, float]:
    """Factors of the learning rate by parameter, where a module sets them."""
    return {
        f"{prefix}.{name}" if prefix else name: factor
        for prefix, module in model.named_modules()
        for name, factor in getattr(module, "rate_factors", {}).items()
    }


def groups(model: nn.Module, settings: Optim) -> list[Group]:
    """Group trainable parameters by component, in the order of the model's parameters.

    A component with parameters that weight decay leaves alone has a second group of them.

    Settings may have rates and decays of components that the model does not have: one table of
    rates serves all models.
    """
    owner = components(model)
    exempt = undecayed(model)
    trained = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    factors = rate_factors(model)
    members: dict[tuple[str, bool, float], list[int]] = {}
    for place, (name, _) in enumerate(trained):
        key = owner[name], name in exempt, factors.get(name, 1.0)
        members.setdefault(key, []).append(place)
    return [
        Group(
            component,
            settings.lr * settings.rates.get(component, 1.0) * factor,
            0.0 if alone else settings.decays.get(component, settings.weight_decay),
            [trained[place][1] for place in places],
            tuple(dict.fromkeys(trained[p][0].rpartition(".")[2] for p in places if alone)),
            tuple(places),
        )
        for (component, alone, factor), places in members.items()
    ]
