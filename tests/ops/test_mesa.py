"""Mesa layer: every form solves the systems of the definition, also for gradients."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from chimera.ops import mesa
from tests.kit import close, grads
from tests.ops import recurrent
from tests.reference.mesa import mesa as by_token


def make(t: int, k: int = 4, v: int = 3, strength: float = 1.0) -> list[Tensor | None]:
    """q, k, v, beta, g, ridge, state."""
    q, keys = F.normalize(torch.randn(2, 2, 2, t, k), dim=-1)
    beta, g = torch.rand(2, 2, t), -strength * torch.rand(2, 2, t) ** 4
    h = torch.randn(2, 2, k, k)
    state = torch.cat([h @ h.mT, torch.randn(2, 2, k, v)], -1)
    ridge = 0.5 + torch.rand(2, k)
    return recurrent.leaves(q, keys, torch.randn(2, 2, t, v), beta, g, ridge, state)


@pytest.mark.parametrize("tolerance", [1e-2, 1e-4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_tolerance_bounds_the_error(dtype: torch.dtype, tolerance: float) -> None:
    """With keys as values o = H x = q − Λ x: a residual r moves it by r − Λ (H + Λ)⁻¹ r."""
    q, k, _, beta, _, ridge, _ = (x.detach().to(dtype) for x in make(200, 16, 16))
    g = torch.full_like(beta, -0.02)
    y, _ = mesa.chunkwise(q, k, k, beta, g, ridge, solver=mesa.Solver(30, tolerance))
    none = torch.zeros(2, 2, 16, 32, dtype=torch.float64)
    want, _ = by_token(*(x.double() for x in (q, k, k, beta, g, ridge)), none)
    error = (y - want).norm(dim=-1).max()
    assert tolerance / 10 < error < (1 + ridge.max() / ridge.min()) * tolerance


def test_a_token_ends_alone() -> None:
    """Its numbers are the same beside a token that takes more steps."""
    x = [y if y is None else y.detach() for y in make(16, 8)]
    loose = mesa.Solver(30, 1e-3)
    y, _ = mesa.chunkwise(*x, solver=loose)
    for t in (3, 15):
        head = [z[:, :, : t + 1] for z in x[:5]]
        close(mesa.chunkwise(*head, *x[5:], solver=loose)[0][:, :, t], y[:, :, t], 1e-12)


def test_float32_forgets_by_any_factor() -> None:
    x = [None if y is None else y.detach().float() for y in make(256, 8, 8)]
    x[4] = torch.where(torch.rand_like(x[4]) < 0.5, -500.0, x[4]).requires_grad_()
    got = mesa.chunkwise(*x)
    want = by_token(*(y.double() for y in x))
    assert (got[0] - want[0]).abs().max() < 2e-5 * want[0].abs().max()
    (slope,) = grads(got[0].sin().sum(), [x[4]])
    assert slope.isfinite().all()


@pytest.mark.parametrize("scale", [1e-30, 1e-20, 1e20])
def test_gradients_of_any_size(scale: float) -> None:
    """float32: squares of gradients below 1e-19 underflow, those above 1e19 overflow."""
    x = [None if y is None else y.detach().float().requires_grad_() for y in make(33)]
    y, last = mesa.chunkwise(*x, chunk=8)
    loss = y.sin().sum() + last.sin().sum()
    over = [z for z in x if z is not None]
    for got, want in zip(grads(scale * loss, over), grads(loss, over), strict=True):
        close(got / scale, want, 1e-4)
