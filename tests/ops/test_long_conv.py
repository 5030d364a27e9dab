"""Long convolution: by FFT and output by output, as the sum over distances."""

from __future__ import annotations

import pytest
import torch

from chimera.ops.long_conv import convolve
from tests.kit import close, grads
from tests.reference.long_conv import long_conv


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
