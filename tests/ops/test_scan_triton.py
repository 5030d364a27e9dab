"""The kernels of the selective scan in Triton equal torch's own form; which inputs go to them."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

import pytest
import torch
from torch import Tensor

from chimera.ops import scan
from tests.kit import grads
from tests.ops.interpreter import interpreted, needs_triton


@pytest.fixture(scope="module")
def kernels() -> Iterator[ModuleType]:
    yield from interpreted("chimera.ops.scan_triton")


def inputs(t: int, n: int, strength: float) -> list[Tensor]:
    """x, Δ, A, B, C, state of two sequences of 32 channels; Δ of some tokens is 0."""
    x, delta = torch.randn(2, 2, t, 32).unbind()
    delta = strength * torch.where(torch.rand(2, t, 1) < 0.2, 0.0, delta.exp())
    maps = torch.randn(2, 2, t, n)
    return [x, delta, -torch.randn(32, n).exp(), *maps, torch.randn(2, n, 32)]


@needs_triton
@pytest.mark.parametrize(
    ("t", "n", "strength"), [(1, 16, 1.0), (16, 4, 1.0), (37, 16, 0.1), (50, 8, 300.0)]
)
def test_kernels_equal_torch_in_float64(
    kernels: ModuleType, t: int, n: int, strength: float
) -> None:
    """Outputs, last state and gradients, to 3e-6 of the largest."""
    parts = inputs(t, n, strength)
    single = [x.clone().requires_grad_() for x in parts]
    double = [x.double().requires_grad_() for x in parts]
    got, want = scan.by_kernels(*single), scan.by_torch(*double)
    slopes = [torch.randn(y.shape) for y in got]
    found, right = (
        [*ys, *grads(sum((y * slope).sum() for y, slope in zip(ys, slopes, strict=True)), xs)]
        for ys, xs in ((got, single), (want, double))
    )
    for x, y in zip(found, right, strict=True):
        assert (x - y).abs().max() <= 3e-6 * max(y.abs().max(), 1.0)


@needs_triton
def test_a_kernel_that_is_wrong_is_found(
    kernels: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    cpu = torch.device("cpu")
    assert kernels.fault(cpu, 16) is None
    by_torch = scan.by_torch
    monkeypatch.setattr(scan, "by_torch", lambda *x: (2 * by_torch(*x)[0], by_torch(*x)[1]))
    assert kernels.fault(cpu, 16) == "wrong numbers"


def test_which_inputs_go_to_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "sound", lambda *_: True)
    x, A = torch.zeros(2, 3, 32), torch.zeros(32, 16)
    assert scan.serves(x, A)
    assert not scan.serves(x.double(), A)
    assert not scan.serves(x[:, :0], A)
    assert not scan.serves(x, A[:, :5])
    assert not scan.serves(x[..., :24], A[:24])
    monkeypatch.undo()
    assert not scan.serves(x, A)  # a CPU
