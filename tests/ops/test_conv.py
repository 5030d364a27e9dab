"""Convolutions, short ones with padding and tails, long ones by FFT, against their sums."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from chimera.ops.conv import causal_conv
from chimera.ops.long_conv import convolve
from tests import kit
from tests.kit import close, grads
from tests.reference.recurrences import causal_conv as naive
from tests.reference.recurrences import long_conv

BATCH, WIDTH = 3, 5


def _inputs(tokens: int, kernel: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    wide = torch.float64
    return (
        torch.randn(BATCH, tokens, WIDTH, dtype=wide, requires_grad=True),
        torch.randn(WIDTH, kernel, dtype=wide, requires_grad=True),
        torch.randn(WIDTH, dtype=wide, requires_grad=True),
        torch.randn(BATCH, kernel - 1, WIDTH, dtype=wide, requires_grad=True),
    )


@pytest.mark.parametrize(("tokens", "kernel"), [(1, 4), (2, 3), (17, 1), (17, 4)])
def test_values_and_gradients_are_those_of_the_definition(tokens: int, kernel: int) -> None:
    x, weight, bias, tail = leaves = _inputs(tokens, kernel)
    y, after = causal_conv(x, weight, bias, tail)
    want = torch.stack([naive(x[i], weight, bias, tail[i]) for i in range(BATCH)])
    last = torch.cat([tail, x], 1)[:, tokens:]
    kit.close(y, want, 1e-12)
    kit.close(after, last, 0)
    weights = torch.randn_like(y), torch.randn_like(after)
    got = kit.grads((y * weights[0]).sum() + (after * weights[1]).sum(), leaves)
    kit.close(got, kit.grads((want * weights[0]).sum() + (last * weights[1]).sum(), leaves), 1e-12)


@pytest.mark.parametrize("continued", [False, True])
def test_padding_gives_the_numbers_and_the_tail_of_the_unpadded(continued: bool) -> None:
    x, weight, bias, tail = _inputs(11, 4)
    mask = torch.rand(BATCH, 11) > 0.4
    y, after = causal_conv(x, weight, bias, tail if continued else None, mask)
    assert y.isfinite().all()
    for i in range(BATCH):
        alone = x[i : i + 1, mask[i]]
        want = causal_conv(alone, weight, bias, tail[i : i + 1] if continued else None)
        kit.close((y[i : i + 1, mask[i]], after[i : i + 1]), want, 1e-12)


def test_gradients_do_not_pass_through_padding() -> None:
    x, weight, bias, tail = _inputs(11, 4)
    mask = torch.rand(BATCH, 11) > 0.4
    y, _ = causal_conv(x, weight, bias, tail, mask)
    (dx,) = kit.grads(y[mask].square().sum(), [x])
    assert not dx[~mask].any()
    assert dx[mask].any()


def test_half_precision_inputs_accumulate_in_float32() -> None:
    x, weight, bias, tail = (v.detach().float() for v in _inputs(9, 4))
    x, tail = x.bfloat16(), tail.bfloat16()
    y, after = causal_conv(x, weight, bias, tail)
    assert y.dtype == after.dtype == torch.bfloat16
    want, _ = causal_conv(x.float(), weight, bias, tail.float())
    kit.close(y, want.bfloat16(), 0)


def test_the_tail_holds_no_memory_of_the_sequence() -> None:
    x, weight, bias, _ = _inputs(50, 4)
    _, tail = causal_conv(x, weight, bias)
    assert tail.untyped_storage().nbytes() == tail.nbytes


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_are_the_bits_of_autograd(dtype: torch.dtype) -> None:
    x, w, bias = torch.randn(2, 9, 6).to(dtype), torch.randn(6, 4), torch.randn(6)
    given = [each.requires_grad_() for each in (x, w, bias)]
    g = torch.randn(2, 9, 6).to(dtype)
    padded = torch.cat([x.new_zeros(2, 3, 6), x], 1)
    plain = torch.addcmul(bias, padded[:, :9], w[:, 0])
    for j in range(1, 4):
        plain = torch.addcmul(plain, padded[:, j : j + 9], w[:, j])
    wanted = torch.autograd.grad(plain.to(dtype), given, g)
    y = causal_conv(x, w, bias)[0]
    assert torch.equal(y, plain.to(dtype))
    for one, other in zip(torch.autograd.grad(y, given, g), wanted, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(("tokens", "last"), [(1, 1), (2, 2), (48, 1), (49, 65), (65, 2)])
def test_is_the_sum(tokens: int, last: int) -> None:
    x = torch.randn(2, tokens, 3, dtype=torch.float64, requires_grad=True)
    h = torch.randn(tokens, 3, dtype=torch.float64, requires_grad=True)
    last = min(last, tokens)
    got, want = convolve(x, h, last), long_conv(x, h)[:, tokens - last :]
    close(got, want, 1e-10)
    weight = torch.randn_like(got)
    close(grads((got * weight).sum(), [x, h]), grads((want * weight).sum(), [x, h]), 1e-10)


def test_half_precision_adds_in_float32() -> None:
    x, h = torch.full((1, 4096, 1), 50.0).half(), torch.ones(4096, 1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = convolve(x, h, 4096)
    assert y.dtype == torch.float32
    assert (y[0, :, 0] - 50 * torch.arange(1.0, 4097)).abs().max() < 1e-6 * y.max()
