"""Cells of mLSTM, in every form, and of sLSTM, with its own gradient (SPEC M13)."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from chimera.ops.mlstm import Memory, mlstm
from chimera.ops.slstm import Cell, slstm
from tests.kit import close, grads, ragged
from tests.reference import recurrences as reference

H, K, V = 2, 4, 6


def inputs(t: int, batch: int = 2, gates: float = 2.0) -> list[Tensor]:
    """q, k, v, ĩ, f̃ such that both arguments of every maximum are the larger one somewhere."""
    wide = [torch.randn(batch, H, t, w) for w in (K, K, V)]
    narrow = [gates * torch.randn(batch, H, t), gates * torch.randn(batch, H, t) + 1]
    return [x.double().requires_grad_() for x in (*wide, *narrow)]


def empty(batch: int = 2) -> Memory:
    return Memory.empty(batch, H, K, V, torch.empty(0, dtype=torch.float64))


def undo(memory: Memory) -> tuple[Tensor, Tensor]:
    """C and n without the factor e^−m."""
    true = memory.c * memory.m.exp()[..., None, None]
    return true[..., :-1], true[..., -1]


@pytest.mark.parametrize(("t", "chunk"), [(1, 64), (65, 16), (65, 1000), (130, 64)])
def test_mlstm_equals_the_definition(t: int, chunk: int) -> None:
    given = inputs(t)
    y, memory = mlstm(*given, empty(), chunk=chunk)
    close(mlstm(*given, chunk=chunk)[0], y)
    rows = [reference.mlstm(*(x[b] for x in given)) for b in range(2)]
    want, *state = (torch.stack(x) for x in zip(*rows, strict=True))
    close(y, want)
    assert memory is not None
    close(undo(memory), tuple(state))
    close(grads(y.square().sum(), given), grads(want.square().sum(), given))


def test_extreme_gates_of_mlstm_are_exact() -> None:
    given = inputs(130, gates=100.0)
    want = reference.mlstm(*(x[0] for x in given))[0]
    close(mlstm(*given)[0][0], want)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_extreme_gates_of_mlstm_stay_finite(dtype: torch.dtype) -> None:
    """exp(200) overflows in float32; f̃ = −200 forgets the whole memory."""
    given = [x.detach().to(dtype).requires_grad_() for x in inputs(130, gates=200.0)]
    y, memory = mlstm(*given, Memory.empty(2, H, K, V, given[0]))
    assert memory is not None
    assert y.dtype == memory.c.dtype == torch.float32
    found = grads(y.float().square().mean(), given)
    assert all(x.isfinite().all() for x in (y, *memory, *found))


def test_single_precision_is_accurate() -> None:
    """1000 tokens with slow decay, so that sums have many terms."""
    given = inputs(1000)
    want, _ = mlstm(*given)
    y, _ = mlstm(*(x.float() for x in given))
    close(y.double(), want, 1e-4)


def test_a_query_of_zeros_reads_zeros() -> None:
    """With ĩ above 88, e^−m is 0 in float32, and so is n·q: 0, not 0/0."""
    q, k, v, i, f = (x.detach().float() for x in inputs(3))
    y, _ = mlstm(q * 0, k, v, i + 100, f)
    assert not y.any()


N, E = 2, 3


def cell_inputs(t: int, batch: int = 2, size: float = 2.0) -> tuple[Tensor, Tensor]:
    x = size * torch.randn(batch, t, N, 4 * E, dtype=torch.float64)
    return x.requires_grad_(), torch.randn(N, E, 4 * E, dtype=torch.float64, requires_grad=True)


def empty_cell(batch: int = 2) -> Cell:
    return Cell.empty(batch, N, E, torch.empty(0, dtype=torch.float64))


def definition(x: Tensor, R: Tensor) -> list[Tensor]:
    """h, c, n of a batch by the reference, whose gates and R have another layout."""
    R = R.unflatten(-1, (4, E)).permute(0, 2, 3, 1)
    rows = [reference.slstm(row.unflatten(-1, (4, E)).transpose(1, 2), R) for row in x]
    return [torch.stack(part) for part in zip(*rows, strict=True)]


@pytest.mark.parametrize("t", [1, 65])
def test_slstm_equals_the_definition(t: int) -> None:
    x, R = cell_inputs(t)
    y, cell = slstm(x, R, empty_cell())
    want, c, n = definition(x, R)
    close(y, want)
    scale = cell.m.exp()
    close((cell.c * scale, cell.n * scale, cell.h), (c, n, y[:, -1]))
    loss = torch.linspace(0, 1, y.numel(), dtype=y.dtype).view_as(y)
    close(grads((y * loss).sum(), [x, R]), grads((want * loss).sum(), [x, R]))


@pytest.mark.parametrize("left", [True, False], ids=["left", "right"])
def test_padding_of_slstm_is_the_identity(left: bool) -> None:
    (x, R), mask = cell_inputs(20, 3), ragged([20, 1, 13], left=left)
    y, cell = slstm(x, R, empty_cell(3), mask)
    assert y.isfinite().all()
    real = y.where(mask[..., None, None], 0).square().sum()
    found = grads(real, [x, R])
    wanted = [torch.zeros_like(x), torch.zeros_like(R)]
    for b, seen in enumerate(mask):
        alone, after = slstm(x[b : b + 1, seen], R, empty_cell(1))
        close(y[b, seen], alone[0])
        close(tuple(s[b] for s in cell), tuple(s[0] for s in after))
        wanted = [a + g for a, g in zip(wanted, grads(alone.square().sum(), [x, R]), strict=True)]
    close(found, wanted)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_extreme_gates_of_slstm_stay_finite(dtype: torch.dtype) -> None:
    x, R = (a.detach().to(dtype).requires_grad_() for a in cell_inputs(50, size=200.0))
    y, cell = slstm(x, R, Cell.empty(2, N, E, x))
    assert all(s.dtype == torch.float32 for s in (y, *cell))
    found = grads(y.float().square().sum(), [x, R])
    assert all(a.isfinite().all() for a in (y, *cell, *found))
