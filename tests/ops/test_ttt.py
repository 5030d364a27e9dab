"""TTT-Linear: every form is gradient descent on the inner loss, as torch differentiates it."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from chimera.ops import ttt
from tests.kit import close, grads
from tests.ops import recurrent
from tests.reference.ttt import ttt as by_token

widths = st.integers(2, 5)


def make(t: int, k: int = 4, m: int = 4) -> list[Tensor]:
    """q, k, v, eta, then the inner model: start, scale, shift, places."""
    q, keys, v = torch.randn(3, 2, 2, t, k)
    eta, places = torch.rand(2, 2, t) / k, 1 / torch.arange(1, m + 1)
    start, scale, shift = torch.randn(2, k + 1, k), 1 + torch.rand(2, 1, k), torch.randn(2, 1, k)
    found = recurrent.leaves(q, keys, v, eta, start, scale, shift, places)
    return [x for x in found if x is not None]


def in_pieces(x: list[Tensor], pieces: list[int]) -> tuple[Tensor, ttt.Memory]:
    """In pieces of these widths; single tokens by `step`."""
    q, k, v, eta, *rest = x
    model, state = ttt.Model(*rest), ttt.Memory.empty(len(q), q.shape[1], q.shape[3], q)
    reads, at = [], 0
    for n in pieces:
        part = [y[:, :, at : at + n] for y in (q, k, v, eta)]
        run = ttt.step if n == 1 else ttt.chunkwise
        z, state = run(*part, model, state)
        reads.append(z)
        at += n
    return torch.cat(reads, 2), state


@given(st.integers(1, 23), widths, st.integers(1, 9), st.integers(1, 8))
def test_every_form(t: int, k: int, m: int, width: int) -> None:
    torch.manual_seed(t)
    x = make(t, k, m)
    want, model = by_token(*x)
    pieces = [width] * (t // width) + [t % width] * bool(t % width)
    for z, state in (in_pieces(x, pieces), in_pieces(x, [1] * t)):
        # The state's difference from the start is that of the oracle's model.
        recurrent.same((z, x[4] + state.moved), (want, model), x)
        assert state.begun.tolist() == [t % m] * 2
    q, keys, v, eta, *rest = x
    z, none = ttt.chunkwise(q, keys, v, eta, ttt.Model(*rest))
    assert none is None
    weight = torch.randn_like(z)
    close(z, want, recurrent.EXACT)
    close(grads((z * weight).sum(), x), grads((want * weight).sum(), x), 1e-9)


def test_one_token_of_a_row_is_padding() -> None:
    q, k, v, eta, *rest = make(2)
    model, mask = ttt.Model(*rest), torch.tensor([[True], [False]])
    _, state = in_pieces([q[:, :, :1], k[:, :, :1], v[:, :, :1], eta[:, :, :1], *rest], [1])
    last = [y[:, :, 1:] for y in (q, k, v, eta)]
    _, after = ttt.step(*last, model, state, mask)
    assert after.begun.tolist() == [2, 1]
    close(after.pending[1], state.pending[1], 0)
    assert not torch.equal(after.pending[0], state.pending[0])
