"""sLSTM cell and its hand-written gradient against the definition (SPEC M13)."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from chimera.ops.slstm import Cell, slstm
from tests.kit import close, grads, ragged
from tests.reference import recurrences as reference

N, E = 2, 3


def inputs(t: int, batch: int = 2, size: float = 2.0) -> tuple[Tensor, Tensor]:
    x = size * torch.randn(batch, t, N, 4 * E, dtype=torch.float64)
    return x.requires_grad_(), torch.randn(N, E, 4 * E, dtype=torch.float64, requires_grad=True)


def empty(batch: int = 2) -> Cell:
    return Cell.empty(batch, N, E, torch.empty(0, dtype=torch.float64))


def definition(x: Tensor, R: Tensor) -> list[Tensor]:
    """h, c, n of a batch by the reference, whose gates and R have another layout."""
    R = R.unflatten(-1, (4, E)).permute(0, 2, 3, 1)
    rows = [reference.slstm(row.unflatten(-1, (4, E)).transpose(1, 2), R) for row in x]
    return [torch.stack(part) for part in zip(*rows, strict=True)]


@pytest.mark.parametrize("t", [1, 65])
def test_equals_the_definition(t: int) -> None:
    x, R = inputs(t)
    y, cell = slstm(x, R, empty())
    want, c, n = definition(x, R)
    close(y, want)
    scale = cell.m.exp()
    close((cell.c * scale, cell.n * scale, cell.h), (c, n, y[:, -1]))
    loss = torch.linspace(0, 1, y.numel(), dtype=y.dtype).view_as(y)
    close(grads((y * loss).sum(), [x, R]), grads((want * loss).sum(), [x, R]))


@pytest.mark.parametrize("left", [True, False], ids=["left", "right"])
def test_padding_is_the_identity(left: bool) -> None:
    (x, R), mask = inputs(20, 3), ragged([20, 1, 13], left=left)
    y, cell = slstm(x, R, empty(3), mask)
    assert y.isfinite().all()
    real = y.where(mask[..., None, None], 0).square().sum()
    found = grads(real, [x, R])
    wanted = [torch.zeros_like(x), torch.zeros_like(R)]
    for b, seen in enumerate(mask):
        alone, after = slstm(x[b : b + 1, seen], R, empty(1))
        close(y[b, seen], alone[0])
        close(tuple(s[b] for s in cell), tuple(s[0] for s in after))
        wanted = [a + g for a, g in zip(wanted, grads(alone.square().sum(), [x, R]), strict=True)]
    close(found, wanted)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_extreme_gates_stay_finite(dtype: torch.dtype) -> None:
    x, R = (a.detach().to(dtype).requires_grad_() for a in inputs(50, size=200.0))
    y, cell = slstm(x, R, Cell.empty(2, N, E, x))
    assert all(s.dtype == torch.float32 for s in (y, *cell))
    found = grads(y.float().square().sum(), [x, R])
    assert all(a.isfinite().all() for a in (y, *cell, *found))
