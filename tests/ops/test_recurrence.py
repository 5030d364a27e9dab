"""The kernels of recurrences in Triton equal torch's own form; which inputs go to them.

On a CPU they run in Triton's interpreter, where Triton is installed; its products are float32.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

import pytest
import torch
from torch import Tensor

from chimera.ops import decay, delta, recurrence, ssd
from tests.kit import grads
from tests.ops.interpreter import interpreted, needs_triton

NAME = "chimera.ops.recurrence_triton"


@pytest.fixture(scope="module")
def kernels() -> Iterator[ModuleType]:
    yield from interpreted(NAME)


def by_torch(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor | None = None,
    skip: Tensor | None = None, *, rule: bool,
) -> Tensor:  # fmt: skip
    if not rule:
        return ssd.chunkwise(q, k, v, g, torch.ones_like(g) if beta is None else beta, skip=skip)[0]
    assert beta is not None
    steps = k[:, :, :, None], v[:, :, :, None], beta[..., None, None]
    return delta.chunkwise(q, *steps, g)[0]


@needs_triton
@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("groups", "t", "k", "v", "beta", "rule", "rate"),
    [(2, 70, 48, 96, 0.99, True, 0.3), (2, 33, 16, 24, None, False, 0.3),
     (1, 70, 128, 64, 0.7, False, 0.3), (2, 64, 16, 16, 0.99, True, 1e4),
     (2, 5, 24, 16, 0.99, True, 0.0)],
)  # fmt: skip
def test_kernels_equal_torch_in_float64(
    kernels: ModuleType, monkeypatch: pytest.MonkeyPatch, stored: torch.dtype,
    groups: int, t: int, k: int, v: int, beta: float | None, rule: bool, rate: float,
) -> None:  # fmt: skip
    """To 2e-6 of the largest; gradients to 1 % with states in bf16. One key comes often."""
    monkeypatch.setattr(recurrence, "STORED", stored)
    q, key = torch.randn(2, 1, t, groups, k).transpose(2, 3).unbind()
    key = torch.nn.functional.normalize(key, dim=-1)
    key[:, :, t // 2 :] = key[:, :, :1]
    value, g = torch.randn(1, 2, t, v), -rate * torch.rand(1, 2, t)
    parts = [q, key, value, g, *[torch.full((1, 2, t), x) for x in (beta,) if x is not None]]
    parts += [torch.randn(2)] if beta and not rule else []
    single = [x.clone().requires_grad_() for x in parts]
    double = [x.double().requires_grad_() for x in parts]
    got, want = recurrence.chunkwise(*single, rule=rule), by_torch(*double, rule=rule)
    assert got.dtype == torch.float32
    assert (got - want).abs().max() <= 2e-6 * want.abs().max()
    slope = torch.randn(got.shape)
    found, right = grads((got * slope).sum(), single), grads((want * slope).sum(), double)
    near = 2e-6 if stored == torch.float32 else 1e-2
    for x, y in zip(found, right, strict=True):
        assert (x - y).abs().max() <= near * max(y.abs().max(), want.abs().max())


@needs_triton
def test_a_kernel_that_is_wrong_is_found(
    kernels: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    cpu = torch.device("cpu")
    assert kernels.fault(cpu, 16, 24, True) is kernels.fault(cpu, 24, 16, False) is None
    right = kernels._by_torch
    monkeypatch.setattr(kernels, "_by_torch", lambda *x, rule: 2 * right(*x, rule=rule))
    assert kernels.fault(cpu, 16, 24, True) is not None


@needs_triton
def test_outputs_are_in_half_precision_for_callers_that_ask(kernels: ModuleType) -> None:
    q, v, g = torch.randn(1, 1, 40, 16).bfloat16(), torch.randn(1, 2, 40, 16), torch.zeros(1, 2, 40)
    got = recurrence.chunkwise(q, q, v, g, rule=False, half=True)
    want = recurrence.chunkwise(q, q, v, g, rule=False)
    assert (got.dtype, want.dtype) == (torch.bfloat16, torch.float32)
    wide = recurrence.chunkwise(v[:, :1], v[:, :1], v, g, rule=False, half=True)
    assert wide.dtype == torch.float32
    assert (got - want).abs().max() <= 2**-7 * want.abs().max()  # the interpreter cuts bits off


def test_which_inputs_go_to_them(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[object, ...]] = []

    def sound(*of: object) -> bool:
        asked.append(of)
        return True

    monkeypatch.setattr(recurrence, "sound", sound)
    half, wide = torch.zeros(8, 8, 4, 16).bfloat16(), torch.zeros(8, 8, 4, 48)
    assert recurrence.serves(half, wide, rule=True)
    assert asked == [(torch.device("cpu"), 16, 48, True)]
    assert not recurrence.serves(wide, wide, rule=True)
    assert not recurrence.serves(half, wide.double(), rule=True)
    assert not recurrence.serves(half.half(), wide, rule=True)
    assert not recurrence.serves(half, wide[:1], rule=True)
    assert not recurrence.serves(half, torch.zeros(8, 8, 4, 144), rule=True)


def test_on_a_cpu_they_serve_nothing_and_break_no_graph() -> None:
    q, v = torch.randn(8, 8, 40, 16).bfloat16(), torch.randn(8, 8, 40, 16)
    g = -torch.rand(8, 8, 40)
    call = torch.compile(lambda *x: decay.chunkwise(*x)[0], backend="eager", fullgraph=True)
    assert torch.equal(call(q, q, v, g), decay.chunkwise(q, q, v, g)[0])
