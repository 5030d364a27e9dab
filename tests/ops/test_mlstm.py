"""mLSTM cell in every form, against the definition and the authors' package (SPEC M13)."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from chimera.ops.mlstm import Memory, mlstm
from tests.kit import close, grads
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
def test_equals_the_definition(t: int, chunk: int) -> None:
    given = inputs(t)
    y, memory = mlstm(*given, empty(), chunk=chunk)
    close(mlstm(*given, chunk=chunk)[0], y)
    rows = [reference.mlstm(*(x[b] for x in given)) for b in range(2)]
    want, *state = (torch.stack(x) for x in zip(*rows, strict=True))
    close(y, want)
    assert memory is not None
    close(undo(memory), tuple(state))
    close(grads(y.square().sum(), given), grads(want.square().sum(), given))


def test_extreme_gates_are_exact() -> None:
    given = inputs(130, gates=100.0)
    want = reference.mlstm(*(x[0] for x in given))[0]
    close(mlstm(*given)[0][0], want)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_extreme_gates_stay_finite(dtype: torch.dtype) -> None:
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
