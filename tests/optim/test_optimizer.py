"""Optimiser and schedule from `optim` equal torch's, built by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hydra.utils import instantiate
from torch import nn

from chimera.config.settings import Optim
from chimera.errors import UserError
from chimera.optim.groups import Group
from chimera.optim.optimizer import build, check
from chimera.optim.schedule import warmup_cosine
from tests.optim.test_kinds import settings


def group(parameter: nn.Parameter) -> list[Group]:
    return [Group("one", 0.1, 0.01, [parameter])]


def steps(optimizer: Any, parameter: nn.Parameter, schedule: Any) -> list[float]:
    found = []
    for _ in range(4):
        parameter.grad = parameter.detach() ** 2 + 1
        optimizer.step()
        schedule.step()
        found.append(parameter.item())
    return found


@pytest.mark.parametrize("given", [settings(), Optim(lr=2e-3)], ids=["composed", "plain"])
def test_the_default_is_adamw_with_warmup_and_cosine(given: Optim) -> None:
    ours, theirs = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1))
    optimizer, schedule = build(given, group(ours), 4, fused=True)
    adamw = torch.optim.AdamW(
        [{"params": [theirs], "lr": 0.1, "weight_decay": 0.01}], betas=(0.9, 0.95), eps=1e-8,
        fused=True,
    )  # fmt: skip
    by_hand = torch.optim.lr_scheduler.LambdaLR(adamw, warmup_cosine(4, 0.1, 0.0))
    assert steps(optimizer, ours, schedule) == steps(adamw, theirs, by_hand)
    assert optimizer.defaults["fused"]


def test_another_optimiser_takes_what_it_has_an_argument_for() -> None:
    given = settings(
        "optim.optimizer._target_=torch.optim.SGD",
        "optim.schedule._target_=chimera.optim.schedule.warmup_constant",
    )
    parameter = nn.Parameter(torch.ones(1))
    optimizer, schedule = build(given, group(parameter), 4, fused=False)
    assert isinstance(optimizer, torch.optim.SGD)
    parameter.grad = torch.ones(1)
    optimizer.step()
    assert parameter.item() == pytest.approx(1 - 0.1 * 1.01)
    assert schedule.get_last_lr() == [0.1]


def test_an_argument_of_the_node_comes_before_the_key_of_optim() -> None:
    node = {"_target_": "torch.optim.AdamW", "_partial_": True, "eps": 0.5}
    given = Optim(lr=1.0, eps=1e-8, optimizer=instantiate(node))
    optimizer, _ = build(given, group(nn.Parameter(torch.ones(1))), 4, fused=False)
    assert optimizer.defaults["eps"] == 0.5


def test_a_rate_of_the_node_is_refused_as_components_have_theirs() -> None:
    node = {"_target_": "torch.optim.AdamW", "_partial_": True, "lr": 0.5}
    with pytest.raises(UserError, match=r"optim.optimizer.lr .* use optim.lr"):
        check(Optim(lr=1.0, optimizer=instantiate(node)))
