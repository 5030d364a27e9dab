"""Log-linear attention: aligned and free chunks and single tokens equal the sum over buckets."""

from __future__ import annotations

import torch
from torch import Tensor

from chimera.ops import log_linear, ssd
from chimera.ops.log_linear import Levels
from tests.kit import close, grads
from tests.ops import recurrent
from tests.reference.log_linear import buckets


def make(t: int, k: int = 3, v: int = 2, levels: int = 5, strength: float = 1.0) -> list[Tensor]:
    """q, k, v, g, scale: two groups of two heads."""
    q, keys = torch.randn(2, 2, 2, t, k)
    g = -strength * torch.rand(2, 4, t) ** 4
    found = recurrent.leaves(q, keys, torch.randn(2, 4, t, v), g, torch.rand(2, 4, t, levels))
    return [x for x in found if x is not None]


def empty(x: list[Tensor]) -> Levels:
    shape = (2, 4, x[4].shape[-1], x[0].shape[-1], x[2].shape[-1])
    return Levels(torch.zeros(shape, dtype=torch.float64), torch.zeros(2, dtype=torch.long))


def in_pieces(x: list[Tensor], pieces: list[int], chunk: int) -> tuple[Tensor, Levels]:
    state, reads, at = empty(x), [], 0
    for n in pieces:
        part = [y[:, :, at : at + n] for y in x]
        if n == 1:
            y, state = log_linear.step(*part, state)
        else:
            y, after = log_linear.chunkwise(*part, state, chunk=chunk)
            assert after is not None
            state = after
        reads.append(y)
        at += n
    return torch.cat(reads, 2), state


def test_equal_weights_are_one_state() -> None:
    """λ = 1 is Mamba-2's recurrence."""
    q, k, v, g, scale = make(130, levels=4)
    got, _ = log_linear.chunkwise(q, k, v, g, torch.ones_like(scale))
    close(got, ssd.chunkwise(q, k, v, g)[0])


def test_buckets_are_those_of_the_paper() -> None:
    """Token 6 = 110₂ reads itself, [4, 6) and [0, 4); each token is in one bucket."""
    assert buckets(6, 9) == [(3, range(4)), (2, range(4, 6)), (0, range(6, 7))]
    for t in range(40):
        for level, tokens in buckets(t, log_linear.levels_for(40)):
            found = log_linear._level(torch.tensor([t ^ s for s in tokens]), 7)
            assert found.tolist() == [level] * len(tokens)


def test_float32_forgets_by_any_factor() -> None:
    x = [y.detach().float() for y in make(256, 8, 8)]
    x[3] = torch.where(torch.rand_like(x[3]) < 0.5, -500.0, x[3]).requires_grad_()
    got, _ = log_linear.chunkwise(*x)
    want, _ = in_pieces([y.double() for y in x], [1] * 256, 1)
    assert (got - want).abs().max() < 1e-5 * want.abs().max()
    (slope,) = grads(got.sin().sum(), [x[3]])
    assert slope.isfinite().all()
