"""The numbers of a step: means, their copy, and an update that does not wait for them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from chimera.errors import NotFiniteError
from chimera.ops.step_numbers import HostCopy, by_name, mean
from chimera.task.base import Task


def test_a_copy_has_the_numbers_of_its_time() -> None:
    numbers = torch.tensor([1.0, torch.inf])
    assert HostCopy(numbers).tolist() == [1.0, torch.inf]


def test_means_count_predictions() -> None:
    def output(loss: float, count: float) -> dict[str, Any]:
        numbers = {key: torch.tensor(loss) for key in ("task_loss", "accuracy")}
        return {**numbers, "count": torch.tensor(count), "aux": {"a": torch.tensor(loss)}} | {
            "stats": {}
        }

    pairs = by_name([output(1.0, 3.0), output(5.0, 1.0)])
    assert {name: float(mean(each)) for name, each in pairs.items()} == {
        "loss": 2.0, "accuracy": 2.0, "aux/a": 2.0
    }  # fmt: skip


TRAINER = SimpleNamespace(precision_plugin=None, gradient_clip_algorithm=None, callbacks=[])


def trained(broken: int | None) -> tuple[Tensor, list[float]]:
    """Weights, and counted steps, after four steps; before one of them a broken one is tried."""
    torch.manual_seed(0)
    layer = nn.Linear(3, 3)
    optimizer = torch.optim.AdamW(layer.parameters(), lr=0.1, weight_decay=0.1, fused=True)
    for number in range(4):
        for found_inf in (1.0, 0.0) if number == broken else (0.0,):
            value = torch.nan if found_inf else number + 1.0
            for parameter in layer.parameters():
                parameter.grad = torch.full_like(parameter, value)
            optimizer.found_inf = torch.tensor(found_inf)  # type: ignore[attr-defined]
            optimizer.step()
    return layer.weight.detach(), [float(state["step"]) for state in optimizer.state.values()]


@pytest.mark.parametrize("broken", [0, 2])
def test_fused_adam_leaves_a_step_out_as_if_it_had_not_been(broken: int) -> None:
    weights, steps = trained(broken)
    same, as_many = trained(None)
    assert weights.equal(same)
    assert steps == as_many


@pytest.mark.parametrize("fused", [True, False])
def test_what_is_not_finite_reaches_the_guard_with_its_gradients(fused: bool) -> None:
    task = Task.__new__(Task)
    Task.__init__(task, nn.Linear(2, 1, bias=False), None, 1, {})  # type: ignore[arg-type]
    task._trainer = cast(Any, TRAINER)
    task.model.weight.grad = torch.tensor([[torch.inf, 4.0]])  # type: ignore[assignment]
    optimizer = torch.optim.AdamW(task.parameters(), fused=fused)
    assert task.leaves_out(optimizer) == fused
    if fused:  # the update may begin
        task.configure_gradient_clipping(optimizer, 1.0)
        assert float(optimizer.found_inf) == 1.0  # type: ignore[attr-defined]
    with pytest.raises(NotFiniteError, match="gradient norm inf"):
        task.read_step() if fused else task.configure_gradient_clipping(optimizer, 1.0)
    assert task.model.weight.grad.tolist() == [[torch.inf, 4.0]]  # type: ignore[union-attr]


@pytest.mark.parametrize("size", [0.01, 30.0])
def test_clipping_in_the_fused_update_is_clipping(
    size: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The update of a GPU divides gradients by what clipping would; torch's of a CPU can, too."""
    updated = []
    for unfused in (("cpu",), ()):
        monkeypatch.setattr("chimera.task.base.UNFUSED", unfused)
        task = Task.__new__(Task)
        Task.__init__(task, nn.Linear(4, 1, bias=False), None, 1, {})  # type: ignore[arg-type]
        task._trainer = cast(Any, TRAINER)
        nn.init.ones_(task.model.weight)  # type: ignore[arg-type]
        optimizer = torch.optim.AdamW(task.parameters(), lr=0.1, eps=1.0, fused=True)
        for _ in range(2):
            task.model.weight.grad = size * torch.tensor([[3.0, 1.0, -2.0, 0.5]])  # type: ignore[assignment]
            task.configure_gradient_clipping(optimizer, 1.0)
            optimizer.step()
        assert hasattr(optimizer, "grad_scale") != bool(unfused)
        updated.append(task.model.weight.detach())
    torch.testing.assert_close(*updated, rtol=1e-6, atol=0)
