"""Decay per channel: every form equals the recurrence, at any decay."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from chimera.ops import channels
from chimera.ops.carry import carry
from tests.kit import close, grads
from tests.ops import recurrent
from tests.reference.channels import decayed

widths, chunks = st.integers(1, 5), st.sampled_from([1, 2, 8, 16, 64])
#: Largest decay of a token: none, usual, and beyond what float64 can hold (e⁻⁷⁴⁵ is 0).
strengths = st.sampled_from([0.0, 1.0, 30.0, 3000.0])


def make(b: int, h: int, t: int, k: int, v: int, strength: float = 1.0) -> list[Tensor | None]:
    """q, k, v, g, state; decays of a channel differ from token to token, some are near 0."""
    g = -strength * torch.rand(b, h, t, k) ** 4
    q, keys, values = torch.randn(b, h, t, k), torch.randn(b, h, t, k), torch.randn(b, h, t, v)
    return recurrent.leaves(q, keys, values, g, torch.randn(b, h, k, v))


@given(widths, widths, st.integers(1, 70), widths, widths, chunks, strengths)
def test_every_form(b: int, h: int, t: int, k: int, v: int, chunk: int, strength: float) -> None:
    torch.manual_seed(t)
    recurrent.every_form(channels, decayed, make(min(b, 2), min(h, 2), t, k, v, strength), chunk)


@pytest.mark.parametrize("t", [1, 150])
def test_parallel_and_chunkwise(t: int) -> None:
    x = make(2, 2, t, 4, 3)
    want = decayed(*x)
    recurrent.same(channels.parallel(*x), want, x)
    # 4-token chunks: more than 32 of them, so that their states are combined in groups.
    recurrent.same(channels.chunkwise(*x, chunk=4), want, x)


def test_float32_forgets_by_any_factor() -> None:
    """Half of the tokens decay by e⁻⁵⁰⁰: over a chunk, the factors exp(±G) of others overflow."""
    x = [y.detach().float() for y in make(1, 2, 256, 8, 8)]
    x[3] = torch.where(torch.rand_like(x[3]) < 0.5, -500.0, x[3]).requires_grad_()
    got, want = channels.chunkwise(*x), decayed(*(y.double() for y in x))
    assert (got[0] - want[0]).abs().max() < 1e-5 * want[0].abs().max()
    (slope,) = grads(got[0].sin().sum(), [x[3]])
    assert slope.isfinite().all()


def test_float32_keeps_its_digits_beside_strong_decays() -> None:
    """Chunks that forget by e⁻⁶⁰⁰⁰⁰ between others that keep everything."""
    x = [y.detach().float() for y in make(1, 2, 1024, 8, 8, 0.01)]
    x[3][:, :, ::192] = -6e4
    got, want = channels.chunkwise(*x), decayed(*(y.double() for y in x))
    assert (got[0] - want[0]).abs().max() < 2e-6 * want[0].abs().max()
    assert (got[1] - want[1]).abs().max() < 2e-6 * want[1].abs().max()


@pytest.mark.parametrize("n", [1, 33, 1100])
def test_states_are_carried_over_any_number_of_chunks(n: int) -> None:
    """Up to two levels of groups of 32; with and without a first state."""
    of = [x.double().requires_grad_() for x in (torch.randn(2, n, 3), -torch.rand(2, n))]
    first = torch.randn(2, 3).double().requires_grad_()
    for start in (None, first):
        state, states = torch.zeros(2, 3).double() if start is None else start, []
        for i in range(n):
            states.append(state)
            state = of[1][:, i, None].exp() * state + of[0][:, i]
        want, got = (torch.stack(states, 1), state), carry(*of, start)
        close(got, want, 1e-12)
        losses = [sum(y.sin().sum() for y in some) for some in (got, want)]
        over = [*of, first]
        close(grads(losses[0], over), grads(losses[1], over), 1e-12)


def test_a_chunk_is_a_power_of_two() -> None:
    with pytest.raises(ValueError, match="chunk=48 is no power of two: choose 64"):
        channels.chunkwise(*make(1, 1, 3, 2, 2), chunk=48)
