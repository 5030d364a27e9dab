"""Decayed recurrence with shared queries and keys: every form equals the recurrence."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from chimera.ops import ssd
from tests.kit import close
from tests.ops import recurrent
from tests.reference.decay import recurrence

widths = st.integers(1, 5)


def make(
    t: int, groups: int, shared: int, k: int, v: int, strength: float = 1.0
) -> list[Tensor | None]:
    """q, k, v, g, state with `shared` heads to a group."""
    h = groups * shared
    q, keys = torch.randn(2, groups, t, k), torch.randn(2, groups, t, k)
    g = -strength * torch.rand(2, h, t) ** 4
    return recurrent.leaves(q, keys, torch.randn(2, h, t, v), g, torch.randn(2, h, k, v))


def oracle(*x: Tensor | None) -> tuple[Tensor, Tensor]:
    """A head at a time, each with its own copy of q and k."""
    q, k, v, g, s = (y for y in x if y is not None)
    q, k = (y.repeat_interleave(v.shape[1] // y.shape[1], 1) for y in (q, k))
    return recurrence(q, k, v, g, s)


@given(
    st.integers(1, 70), st.integers(1, 3), st.integers(1, 3), widths, widths,
    st.sampled_from([1, 4, 16, 64]), st.sampled_from([1.0, 30.0, 3000.0]),
)  # fmt: skip
def test_every_form(
    t: int, groups: int, shared: int, k: int, v: int, chunk: int, strength: float
) -> None:
    torch.manual_seed(t)
    recurrent.every_form(ssd, oracle, make(t, groups, shared, k, v, strength), chunk)


def test_float32_keeps_its_digits_beside_strong_decays() -> None:
    """Chunks that forget by e⁻⁶⁰⁰⁰⁰ between others that keep everything.

    Weights as differences of sums over a chunk, or over chunks, would be off by 0.6 %.
    """
    x = [None if y is None else y.detach().float() for y in make(1024, 1, 2, 8, 8, 0.01)]
    g = x[3]
    assert g is not None
    g[:, :, ::192] = -6e4
    got, want = ssd.chunkwise(*x), oracle(*(None if y is None else y.double() for y in x))
    assert (got[0] - want[0]).abs().max() < 2e-6 * want[0].abs().max()
    assert (got[1] - want[1]).abs().max() < 2e-6 * want[1].abs().max()


def test_a_step_of_size_zero_keeps_everything() -> None:
    delta = torch.rand(2, 3, 4)
    mask = torch.tensor([[True, False, True], [False, True, True]])
    close(ssd.masked(delta, mask), delta * mask[..., None])
    assert ssd.masked(delta, None) is delta
