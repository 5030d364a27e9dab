"""The kernels of rotation and grid in Triton equal torch's own form; which inputs go to them."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

import pytest
import torch
from torch import nn

from chimera.ops import grid, hadamard, rotated
from chimera.quant.shared import inputs
from tests.ops.interpreter import interpreted, needs_triton


@pytest.fixture(scope="module")
def kernels() -> Iterator[ModuleType]:
    yield from interpreted("chimera.ops.rotated_triton")


@pytest.fixture(autouse=True)
def few_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program looks at several blocks of tokens, as it does of many."""
    monkeypatch.setattr(rotated, "SHARES", 1)


@needs_triton
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("n", "blocks"), [(16, 3), (256, 3), (512, 1), (1024, 1)])
def test_kernels_equal_torch_in_float64(
    kernels: ModuleType, n: int, blocks: int, dtype: torch.dtype
) -> None:
    """Peaks to 1e-6; each rounded number is the nearest point of the grid, to 1e-4 of a step."""
    x = torch.randn(3, 15, n * blocks).to(dtype)
    h = hadamard.signs(min(n, hadamard.WIDEST))
    z = hadamard.rotate_fast(x.double(), h, n)
    peak = rotated.peaks(x, h, n)
    assert torch.allclose(peak.double(), z.abs().amax((0, 1)), rtol=1e-6)
    made = rotated.rounded(x, h, n, peak, 4, grid.AWAY, torch.float32)
    step = peak / 7
    assert ((made - z).abs() <= (0.5 + 1e-4) * step).all()
    assert torch.allclose(made / step, (made / step).round(), atol=1e-5)


@needs_triton
@pytest.mark.parametrize("momentum", [0.1, 1.0])
def test_the_layers_inputs_are_the_same_by_both(
    kernels: ModuleType, monkeypatch: pytest.MonkeyPatch, momentum: float
) -> None:
    """Output, gradient and running maxima of two batches; evaluation goes another way."""
    both = [
        nn.Sequential(inputs.Rotation(48, "fast"), inputs.PerChannel(48, 4, momentum))
        for _ in range(2)
    ]
    found: list[list[torch.Tensor]] = []
    for by_kernels, layer in zip((False, True), both, strict=True):
        monkeypatch.setattr(rotated, "sound", lambda *_, by=by_kernels: by)
        found.append([])
        for seed in (0, 1):
            x = torch.randn(2, 9, 48, generator=torch.Generator().manual_seed(seed))
            x.requires_grad_()
            weight = torch.linspace(-1, 1, 5 * 48).view(5, 48).requires_grad_()
            bias = torch.ones(5, requires_grad=True)
            y = inputs.product(layer, x, weight, bias)
            y.square().sum().backward()
            found[-1] += [y, layer[1].maxima.clone()]
            found[-1] += [given.grad for given in (x, weight, bias) if given.grad is not None]
        monkeypatch.setattr(rotated, "peaks", None)  # fails if called
        inputs.rounded(layer.eval(), x)
        monkeypatch.undo()
    for got, want in zip(*found, strict=True):
        assert (got - want).norm() <= 1e-5 * want.norm()  # sums of terms that cancel


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(("n", "blocks"), [(64, 3), (512, 1)])
def test_a_product_rotates_its_weight_for_the_gradient(n: int, blocks: int, compiled: bool) -> None:
    """Its gradients are those of a product of the rotated input, in bf16 within its rounding."""
    x = torch.randn(2, 40, n * blocks).double()
    weight = torch.randn(24, n * blocks).double()
    h = hadamard.signs(min(n, hadamard.WIDEST))
    made = hadamard.rotate_fast(x, h, n).round(decimals=1)

    def pair(x: torch.Tensor, made: torch.Tensor, weight: torch.Tensor) -> list[torch.Tensor]:
        other = nn.functional.linear(hadamard.rotate_fast(x, h, n, made), weight)
        return [rotated.product(x, made, weight, h, n), other]

    found = torch.compile(pair, backend="aot_eager") if compiled else pair
    for dtype, bound in ((torch.float64, 1e-12), (torch.bfloat16, 2e-2)):
        given = [x.to(dtype).requires_grad_(), made.to(dtype), weight.to(dtype).requires_grad_()]
        torch._dynamo.reset()
        ours, other = (
            [y, *torch.autograd.grad(y.square().sum(), [given[0], given[2]], retain_graph=True)]
            for y in found(*given)
        )
        for got, want in zip(ours, other, strict=True):
            assert got.dtype == want.dtype == dtype
            assert (got - want).double().norm() <= bound * want.double().norm()


@needs_triton
def test_what_is_no_number_stays_none(kernels: ModuleType) -> None:
    """A row with NaN or an overflow gives no numbers, and its channels have no maximum."""
    x = torch.randn(3, 32)
    x[1, 3] = float("nan")
    h = hadamard.signs(16)
    peak = rotated.peaks(x, h, 16)
    assert peak.isfinite().tolist() == [False] * 16 + [True] * 16
    made = rotated.rounded(x, h, 16, peak, 4, 1.0, torch.float32)
    assert made[1, :16].isnan().all()
    assert made[:, 16:].isfinite().all()


@needs_triton
def test_a_kernel_that_is_wrong_is_found(
    kernels: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    cpu = torch.device("cpu")
    assert kernels.fault(cpu, 64) is None
    assert kernels.fault(cpu, 1024) is None
    right = rotated._matrix
    monkeypatch.setattr(rotated, "_matrix", lambda *x: right(*x).abs())
    assert kernels.fault(cpu, 64) == "wrong numbers"


def test_which_inputs_go_to_them(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.zeros(2, 3, 48)
    assert not rotated.serves(x, 16)  # a CPU
    monkeypatch.setattr(rotated, "sound", lambda *_: True)
    assert all(rotated.serves(x.to(dtype), 16) for dtype in (torch.float32, torch.bfloat16))
    assert not rotated.serves(x.double(), 16)
    assert not rotated.serves(x[:, :0], 16)
    assert not rotated.serves(x, 8)
    assert not rotated.serves(torch.zeros(2, 2048), 2048)
