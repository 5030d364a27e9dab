"""Diagonal-plus-rank-one transitions: every form equals the recurrence, at any decay."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from chimera.ops import dplr
from tests.kit import grads
from tests.ops import recurrent
from tests.reference.channels import low_rank

widths, chunks = st.integers(1, 5), st.sampled_from([1, 2, 8, 16, 64])
strengths = st.sampled_from([0.0, 1.0, 30.0, 3000.0])
TIED = [True, False]


def make(
    t: int, k: int = 4, v: int = 3, *, tied: bool, strength: float = 1.0
) -> list[Tensor | None]:
    """q, k, v, a, b, g, state, as of Kimi Delta Attention (b is k) or RWKV-7."""
    q, keys = torch.randn(2, 2, t, k), F.normalize(torch.randn(2, 2, t, k), dim=-1)
    g = -strength * torch.rand(2, 2, t, k) ** 4
    if tied:
        a, b = -torch.rand(2, 2, t, 1) * keys * g.exp(), None
    else:
        erased = F.normalize(torch.randn(2, 2, t, k), dim=-1)
        a, b = -erased, torch.rand(2, 2, t, k) * erased
    return recurrent.leaves(q, keys, torch.randn(2, 2, t, v), a, b, g, torch.randn(2, 2, k, v))


def oracle(*x: Tensor | None) -> tuple[Tensor, Tensor]:
    q, k, v, a, b, g, s = x
    return low_rank(q, k, v, a, k if b is None else b, g, s)


@given(st.integers(1, 70), widths, widths, chunks, st.booleans(), strengths)
def test_every_form(t: int, k: int, v: int, chunk: int, tied: bool, strength: float) -> None:
    torch.manual_seed(t)
    recurrent.every_form(dplr, oracle, make(t, k, v, tied=tied, strength=strength), chunk)


@pytest.mark.parametrize("tied", TIED)
@pytest.mark.parametrize("t", [1, 130])
def test_parallel_and_chunkwise(t: int, tied: bool) -> None:
    x = make(t, tied=tied)
    want = oracle(*x)
    recurrent.same(dplr.parallel(*x), want, x)
    recurrent.same(dplr.chunkwise(*x), want, x)


@pytest.mark.parametrize("tied", TIED)
def test_float32_forgets_by_any_factor(tied: bool) -> None:
    x = [None if y is None else y.detach().float() for y in make(256, 8, 8, tied=tied)]
    g = torch.where(torch.rand_like(x[5]) < 0.5, -500.0, x[5])
    x[3], x[5] = x[3] * (g.exp() if tied else 1), g.requires_grad_()
    got, want = dplr.chunkwise(*x), oracle(*(None if y is None else y.double() for y in x))
    assert (got[0] - want[0]).abs().max() < 1e-5 * want[0].abs().max()
    (slope,) = grads(got[0].sin().sum(), [x[5]])
    assert slope.isfinite().all()
