"""Log-linear attention in float32; tests/mixer/test_log_linear.py has its definition."""

from __future__ import annotations

import torch

from chimera.ops import log_linear
from tests.kit import grads


def test_float32_forgets_by_any_factor() -> None:
    """Half of the tokens decay by e⁻⁵⁰⁰: over a chunk, the factors exp(±G) of others overflow."""
    q, k = torch.randn(2, 2, 2, 256, 8)
    v, g, scale = torch.randn(2, 4, 256, 8), -(torch.rand(2, 4, 256) ** 4), torch.rand(2, 4, 256, 5)
    g = torch.where(torch.rand_like(g) < 0.5, -500.0, g).requires_grad_()
    got, _ = log_linear.chunkwise(q, k, v, g, scale)
    want, _ = log_linear.chunkwise(*(y.double() for y in (q, k, v, g, scale)))
    assert (got - want).abs().max() < 1e-5 * want.abs().max()
    (slope,) = grads(got.sin().sum(), [g])
    assert slope.isfinite().all()
