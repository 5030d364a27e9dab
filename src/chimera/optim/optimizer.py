"""Build optimiser and learning-rate schedule, with rates and decays by component (SPEC T1).

`optim.optimizer` is any torch optimiser of parameter groups; `optim.schedule` is a function in
`chimera.optim.schedule`. Both get the keys of `optim` that their signatures name, unless their YAML
nodes set the arguments.

A module names parameters of its own that weight decay leaves alone in its class attribute
`undecayed`: rates of decay, biases of gates, slopes, where zero is no neutral value. They form a
second group of their component, with the component's rate and weight decay 0. `rate_factors` of a
module multiplies the rate of some of its own parameters (LoRA+); each factor is a group.
"""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from chimera.config.settings import Optim
from chimera.errors import UserError, nearest, one_line
from chimera.optim.schedule import Factor, warmup_cosine


@dataclass(frozen=True)
class Group:
    """Parameters of one component, their learning rate and weight decay.

    Args:
        component: whose parameters they are.
        lr: peak learning rate.
        weight_decay: 0 in a group of `undecayed` parameters.
        parameters: in the order of the model.
        undecayed: names, without modules, of the parameters that decay leaves alone; else empty.
    """

    component: str
    lr: float
    weight_decay: float
    parameters: list[nn.Parameter]
    undecayed: tuple[str, ...] = ()

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
        if not getattr(module, "in_mixer", False):
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
    factors = rate_factors(model)
    members = defaultdict[tuple[str, bool, float], dict[str, nn.Parameter]](dict)
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            members[owner[name], name in exempt, factors.get(name, 1.0)][name] = parameter
    return [
        Group(
            component,
            settings.lr * settings.rates.get(component, 1.0) * factor,
            0.0 if alone else settings.decays.get(component, settings.weight_decay),
            list(found.values()),
            tuple(dict.fromkeys(name.rpartition(".")[2] for name in found if alone)),
        )
        for (component, alone, factor), found in members.items()
    ]


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
    return make_schedule(total_steps, **_accepted(make_schedule, defaults))


def check(settings: Optim) -> None:
    """Reject an optimiser that sets arguments of parameter groups, or that cannot take a step.

    Raises:
        UserError: with the keys to set instead, or with the optimiser's own words.
    """
    for key in getattr(settings.optimizer, "keywords", {}):
        if key in PER_GROUP:
            raise UserError(
                f"optim.optimizer.{key} is set for each component; use optim.lr and optim.rates, or"
                " optim.weight_decay and optim.decays"
            )
    try:
        _try(settings)
    except (TypeError, ValueError, RuntimeError, AttributeError, AssertionError) as error:
        made = settings.optimizer or torch.optim.AdamW
        name = getattr(made, "func", made).__name__
        raise UserError(
            f"optim.optimizer: {name} cannot train a model: {one_line(error)}; choose a class that"
            " takes parameter groups and dense gradients, and needs no closure"
        ) from error


def _try(settings: Optim) -> None:
    """Build the optimiser and the schedule for a matrix and a vector, and take one step.

    The types of `optim` check AdamW's values already. A trial imports torch._dynamo, which takes
    longer than all other checks, so AdamW has none.
    """
    made = settings.optimizer or torch.optim.AdamW
    keywords = getattr(made, "keywords", {})
    if getattr(made, "func", made) is torch.optim.AdamW and not keywords:
        if len(settings.betas) != 2:
            raise ValueError(f"optim.betas={settings.betas} has not two numbers")
        rate_factor(settings, 10)(1)
        return
    parameters = [torch.nn.Parameter(torch.ones(shape)) for shape in ((2, 2), (2,))]
    groups = [Group("other", settings.lr, settings.weight_decay, parameters)]
    optimizer, schedule = build(settings, groups, 10, fused=False)
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    with torch.compiler.set_stance("force_eager"):  # compiling takes longer than the whole check
        optimizer.step()
    schedule.step()


def check_components(settings: Optim, model: torch.nn.Module, known: Collection[str]) -> None:
    """Reject rates and decays of components that neither the model nor another part has.

    Args:
        settings: values of `optim`.
        model: that is to be trained.
        known: components of all parts; one table of rates serves many models.

    Raises:
        UserError: with the components of the model.
    """
    own = dict.fromkeys(components(model).values())
    for key in ("rates", "decays"):
        for name in getattr(settings, key):
            if name not in own and name not in known:
                raise UserError(
                    f"optim.{key}.{name}: no part is called {name}; this model has"
                    f" {', '.join(own)}{nearest(name, {*own, *known})}"
                )


def _accepted(function: Callable[..., Any], defaults: dict[str, Any]) -> dict[str, Any]:
    """Arguments among `defaults` that the function has and that a partial does not fix."""
    fixed = getattr(function, "keywords", {})
    parameters = inspect.signature(function).parameters
    return {
        key: value
        for key, value in defaults.items()
        if key in parameters and key not in fixed and _alike(parameters[key].default, value)
    }


def _alike(default: Any, value: Any) -> bool:
    """Whether a default is of the same form: Adafactor's `eps` is a pair, not a number."""
    if default is inspect.Parameter.empty or default is None:
        return True
    pair = isinstance(value, tuple)
    return pair == isinstance(default, tuple) and (not pair or len(default) == len(value))
