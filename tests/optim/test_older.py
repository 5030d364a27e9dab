"""Checkpoints of numerics 1, with optimiser and schedule, load into today's groups and shapes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from chimera.model.backbone import EmbeddingScale
from chimera.norm.dyt import DyT
from chimera.norm.qdyt import QDyT
from chimera.optim.groups import components, groups
from chimera.optim.older import upgrade
from chimera.optim.optimizer import build
from chimera.rundir.checkpoint_io import load
from chimera.rundir.directory import RunDir
from chimera.train.restore import restore

OLD = Path(__file__).parents[1] / "fixtures" / "old_run" / "killed"


def made(task: Any) -> tuple[torch.optim.Optimizer, Any]:
    return build(task.optim, groups(task.model, task.optim), 200, fused=True)


def test_a_checkpoint_of_the_first_release_gives_each_parameter_its_own_moments() -> None:
    """Its groups were components in the order of the model; QDyT's α had shape []."""
    task = restore(RunDir(OLD), "last", training=True).task
    checkpoint = load(OLD / "checkpoints" / "last.ckpt")
    saved, weights = checkpoint["optimizer_states"][0], checkpoint["state_dict"]
    alphas = [name for name in weights if name.endswith("alpha")]
    assert {weights[name].ndim for name in alphas} == {0}
    owner = components(task.model)
    old_order = [
        name
        for group in saved["param_groups"]
        for name in dict(task.model.named_parameters())
        if owner[name] == group["name"]
    ]
    moments = {name: dict(saved["state"].get(i, {})) for i, name in enumerate(old_order)}
    assert sum("exp_avg" in state for state in moments.values()) > len(alphas)

    task.on_load_checkpoint(checkpoint)
    task.load_state_dict(weights)
    optimizer, schedule = made(task)
    optimizer.load_state_dict(checkpoint["optimizer_states"][0])
    schedule.load_state_dict(checkpoint["lr_schedulers"][0])
    for name, parameter in task.model.named_parameters():
        assert optimizer.state.get(parameter, {}).keys() == moments[name].keys(), name
        for key, value in moments[name].items():
            wanted = value.reshape(1) if value.ndim == 0 and key != "step" else value
            assert torch.equal(optimizer.state[parameter][key], wanted), (name, key)
            assert key == "step" or wanted.shape == parameter.shape
    decays = {g["name"]: set() for g in optimizer.param_groups}
    for group in optimizer.param_groups:
        decays[group["name"]].add(group["weight_decay"])
    assert decays["norm"] == {0.0, 0.001}
    assert len(schedule.base_lrs) == len(optimizer.param_groups)
    for parameter in task.model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    schedule.step()
    assert len({g["lr"] / g["initial_lr"] for g in optimizer.param_groups}) == 1


def test_a_checkpoint_of_today_stays_as_it_is() -> None:
    task = restore(RunDir(OLD), "last", training=True).task
    optimizer, schedule = made(task)
    for parameter in task.model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    checkpoint = {
        "optimizer_states": [optimizer.state_dict()],
        "lr_schedulers": [schedule.state_dict()],
    }
    before = torch.utils._pytree.tree_flatten(checkpoint)[0]
    upgrade(checkpoint, groups(task.model, task.optim))
    after = torch.utils._pytree.tree_flatten(checkpoint)[0]
    assert len(before) == len(after)
    assert all(
        a is b if isinstance(a, Tensor) else a == b for a, b in zip(before, after, strict=True)
    )


@pytest.mark.parametrize(
    ("module", "name"),
    [
        (DyT(4, alpha="scalar"), "alpha"),
        (QDyT(4), "alpha"),
        (EmbeddingScale(2.0, learned=True), "scale"),
    ],
)
def test_a_parameter_of_one_number_has_an_axis_and_loads_without(
    module: nn.Module, name: str
) -> None:
    assert getattr(module, name).shape == (1,)
    old = {**module.state_dict(), name: torch.tensor(0.25)}
    module.load_state_dict(old)
    assert float(getattr(module, name).detach()) == 0.25
    assert old[name].ndim == 0  # the caller's tensors are left alone
