"""The kernel of codes per token in Triton, interpreted, equals torch's own path."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from types import ModuleType

import numpy as np
import pytest
import torch

from chimera.ops import grid
from tests.ops.interpreter import interpreted, needs_triton

pytestmark = needs_triton


@pytest.fixture(scope="module")
def kernels() -> Iterator[ModuleType]:
    yield from interpreted("chimera.ops.grid_triton")


@pytest.fixture(autouse=True)
def small_parts(kernels: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "CHANNELS", 64)


def both(
    kernels: ModuleType, x: torch.Tensor, bits: int, eps: float | None, nudge: float
) -> list[tuple[torch.Tensor, ...]]:
    """Codes, step and rstd of torch, then of the kernel."""
    found: list[tuple[torch.Tensor, ...]] = []
    for given in (None, kernels):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(grid, "gpu", lambda *_, given=given: given)
            x = x.clone()  # nothing is kept of it
            if eps is None:
                found.append(grid.to_codes(x, bits, nudge))
            else:
                found.append(grid.rms_codes(x, bits, eps, nudge))
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("nudge", [1.0, grid.AWAY])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("shape", [(2, 3, 300), (64,), (0, 7), (1, 1)])
def test_codes_without_a_norm_have_the_bits_of_torch(
    kernels: ModuleType, shape: tuple[int, ...], bits: int, nudge: float, dtype: torch.dtype
) -> None:
    x = torch.randn(shape).to(dtype)
    x[..., :1] = 0
    if x.ndim == 3:
        x[0, 1] = 0  # padding
        x[1, :, ::2] = x[1, :, :1] + 0.5 * x[1].abs().amax() / 7  # halves of the 4-bit grid
        x = x.mT.contiguous().mT
    (codes, step), (got, got_step) = both(kernels, x, bits, None, nudge)
    assert torch.equal(got, codes)
    assert torch.equal(got_step, step)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("bits", "eps"), [(8, 1e-6), (4, 1e-3)])
def test_codes_after_a_norm_are_the_nearest(
    kernels: ModuleType, bits: int, eps: float, dtype: torch.dtype
) -> None:
    """The sum of squares has another order: scales to 1e-6, codes to 1e-4 of a step."""
    x = torch.randn(5, 300).to(dtype)
    x[3] = 0
    (_, step, rstd), (codes, got_step, got_rstd) = both(kernels, x, bits, eps, 1.0)
    assert torch.allclose(got_step, step, rtol=1e-6)
    assert torch.allclose(got_rstd, rstd, rtol=1e-6)
    exact = x.double() * (x.double().square().mean(-1, keepdim=True) + eps).rsqrt()
    assert ((codes * got_step.double() - exact).abs() <= (0.5 + 1e-4) * got_step).all()


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("eps", [None, 1e-6])
def test_what_is_not_finite_stays_so(
    kernels: ModuleType, bad: float, eps: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GPU's maximum of NaN and a number is the number; the interpreter's is NaN."""
    builder = import_module("triton.runtime.interpreter").InterpreterBuilder
    for name in ("create_maxnumf", "create_maximumf"):
        monkeypatch.setattr(
            builder, name, lambda self, x, y: self.binary_op(x, y, np.fmax), raising=False
        )
    x = torch.ones(2, 100)
    x[0, 70] = bad
    step = kernels.rounded(x, 8, eps, 1.0)[1]
    assert step.isfinite().flatten().tolist() == [False, True]


def test_wrong_numbers_are_found_before_use(
    kernels: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert kernels.fault(torch.device("cpu")) is None
    made = kernels.rounded

    def wrong(*given: object) -> tuple[torch.Tensor, ...]:
        codes, *others = made(*given)
        return (codes.clamp(max=100), *others)

    monkeypatch.setattr(kernels, "rounded", wrong)
    assert kernels.fault(torch.device("cpu")) == "wrong numbers"
