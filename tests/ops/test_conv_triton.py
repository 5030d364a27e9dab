"""The kernels of the short convolution in Triton equal torch's own form; what goes to them."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from chimera.ops import conv
from tests.kit import grads
from tests.ops.interpreter import interpreted, needs_triton


@pytest.fixture(scope="module")
def kernels() -> Iterator[ModuleType]:
    yield from interpreted("chimera.ops.conv_triton")


def by_torch(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, silu: bool) -> Tensor:
    y = conv.by_torch(F.pad(x, (0, 0, weight.shape[1] - 1, 0)), weight, bias)
    return F.silu(y) if silu else y


@needs_triton
@pytest.mark.parametrize(
    ("t", "d", "taps", "biased", "silu"),
    [(130, 72, 4, True, True), (3, 16, 4, False, True), (1, 64, 2, True, False),
     (65, 40, 7, False, False)],
)  # fmt: skip
def test_kernels_equal_torch_in_float64(
    kernels: ModuleType, t: int, d: int, taps: int, biased: bool, silu: bool
) -> None:
    """Outputs and gradients of a part of a wider tensor, to 3e-6 of the largest."""
    parts = [torch.randn(2, t, d), torch.randn(d, taps), *[torch.randn(d)][: int(biased)]]
    wide = F.pad(parts[0], (8, 16))
    single = [wide.requires_grad_(), *(x.clone().requires_grad_() for x in parts[1:])]
    double = [x.double().requires_grad_() for x in parts]
    got = conv.by_kernels(wide[..., 8:-16], *single[1:], *[None][biased:], silu=silu)
    want = by_torch(*double, silu=silu)
    slope = torch.randn(want.shape)
    found, right = grads((got * slope).sum(), single), grads((want * slope).sum(), double)
    assert not found[0][..., :8].any()
    for x, y in zip((got, found[0][..., 8:-16], *found[1:]), (want, *right), strict=True):
        assert (x - y).abs().max() <= 3e-6 * max(y.abs().max(), 1.0)


@needs_triton
def test_strided_parameters(kernels: ModuleType) -> None:
    x, weight, bias = torch.randn(1, 9, 8), torch.randn(4, 8).T, torch.randn(16)[::2]
    got = conv.by_kernels(x, weight, bias, silu=False)
    assert torch.allclose(got, by_torch(x, weight, bias, silu=False), atol=1e-5)


@needs_triton
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_rounded_once(kernels: ModuleType, dtype: torch.dtype) -> None:
    x, weight = torch.randn(2, 70, 24).to(dtype).requires_grad_(), torch.randn(24, 4)
    wide = x.detach().float().requires_grad_()
    got = conv.by_kernels(x, weight, None, silu=True)
    want = by_torch(wide, weight, silu=True)
    assert got.dtype == dtype
    near = 2 * torch.finfo(dtype).eps  # halves may be rounded apart
    assert torch.allclose(got.float(), want, rtol=near, atol=1e-4)
    (found,), (right,) = grads(got.float().sum(), [x]), grads(want.sum(), [wide])
    assert torch.allclose(found.float(), right, rtol=near, atol=1e-4)


@needs_triton
def test_a_kernel_that_is_wrong_is_found(
    kernels: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    cpu = torch.device("cpu")
    assert kernels.fault(cpu, 4) is kernels.fault(cpu, 2) is None
    right = conv.by_torch
    monkeypatch.setattr(conv, "by_torch", lambda *x: right(*x) * 1.001)
    assert kernels.fault(cpu, 4) == "wrong numbers"


@needs_triton
def test_the_layer_gives_the_same_by_both(
    kernels: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Outputs and tail, also of fewer tokens than taps; torch serves a tail or a mask."""
    weight = torch.randn(24, 4)
    for t in (2, 9):
        x = torch.randn(2, t, 24)
        with monkeypatch.context() as patch:
            patch.setattr(conv, "sound", lambda *_: True)
            y, tail = conv.causal_conv(x, weight, silu=True)
            patch.setattr(conv, "by_kernels", None)  # fails if called
            conv.causal_conv(x, weight, None, tail)
            conv.causal_conv(x, weight, mask=torch.ones(2, t, dtype=torch.bool))
        want = conv.causal_conv(x, weight, silu=True)
        assert torch.equal(tail, want[1])
        assert torch.allclose(y, want[0], atol=1e-5)


def test_which_inputs_go_to_them(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.zeros(2, 3, 8)
    assert not conv.serves(x, 4)  # a CPU
    monkeypatch.setattr(conv, "sound", lambda *_: True)
    assert all(conv.serves(x.to(dtype), 4) for dtype in (torch.float32, torch.float16))
    assert not conv.serves(x.double(), 4)
    assert not conv.serves(x[:, :0], 4)
    assert not conv.serves(x, 1)
    assert not conv.serves(x, conv.MOST + 1)
