"""Rotation of pairs: the matrix of TITAN eq. 18, relative scores, precision."""

from __future__ import annotations

import pytest
import torch

from chimera.ops.rotary import angles, frequencies, phases, rotate, turn
from tests.kit import close


def test_each_pair_is_turned_by_its_angle() -> None:
    x, pos = torch.randn(2, 3, 5, 8).double(), torch.tensor([[0, 1, 2, 3, 90]])
    theta = frequencies(4, 100.0, like=x)
    close(theta, 100.0 ** -(torch.arange(4).double() / 4))
    y = rotate(x, *angles(pos, theta))
    for t, p in enumerate(pos[0]):
        for i in range(4):
            c, s = (p * theta[i]).cos(), (p * theta[i]).sin()
            turn = torch.stack([torch.stack([c, -s]), torch.stack([s, c])])
            pair = slice(2 * i, 2 * i + 2)
            close(y[:, :, t, pair], x[:, :, t, pair] @ turn.T)


def test_retnet_frequencies_reach_the_base() -> None:
    like = torch.empty(0, dtype=torch.float64)
    want = 10000.0 ** -torch.linspace(0, 1, 16, dtype=torch.float64)
    close(frequencies(16, 10000.0, like=like, inclusive=True), want)
    close(frequencies(1, 10000.0, like=like, inclusive=True), torch.ones(1).double())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_the_result_has_the_dtype_of_the_input_and_is_turned_in_float32(dtype: torch.dtype) -> None:
    x = torch.randn(1, 2, 3, 8).to(dtype)
    theta = frequencies(4, 10000.0, like=x)
    assert theta.dtype == torch.float32
    y = rotate(x, *angles(torch.tensor([[0, 5, 4000]]), theta))
    assert y.dtype == dtype
    wide = rotate(x.double(), *angles(torch.tensor([[0, 5, 4000]]), theta.double()))
    close(y.double(), wide, 1e-2 if dtype != torch.float32 else 1e-3)


def test_heads_split_from_a_projection_are_turned_as_they_lie() -> None:
    x = torch.randn(2, 5, 24).double().requires_grad_()
    heads = x.view(2, 5, 3, 8).transpose(1, 2)
    turn = angles(torch.arange(5)[None], frequencies(4, 10000.0, like=x))
    close(rotate(heads, *turn), rotate(heads.contiguous(), *turn))
    (grad,) = torch.autograd.grad(rotate(heads, *turn).square().sum(), x)
    close(grad, 2 * x)  # a rotation keeps norms


def test_phases_turn_as_angles_do() -> None:
    x, pos = torch.randn(2, 3, 5, 8), torch.tensor([[0, 1, 2, 3, 90]])
    theta = frequencies(4, 10000.0, like=x, inclusive=True)
    phase = phases(pos, 4, 10000.0, like=x, inclusive=True)
    assert torch.equal(turn(x, phase), rotate(x, *angles(pos, theta)))
    half = x.bfloat16()
    assert torch.equal(turn(half, phase), rotate(half, *angles(pos, theta)))


def test_a_compiled_graph_turns_by_real_numbers() -> None:
    torch._dynamo.reset()
    x, pos = torch.randn(2, 3, 5, 12).double().requires_grad_(), torch.tensor([[0, 1, 2, 3, 90]])
    phase = phases(pos, 4, 10000.0, like=x)  # the last four channels stay
    compiled = torch.compile(turn, backend="aot_eager", fullgraph=True)(x, phase)
    close(compiled, turn(x, phase), 1e-12)
    both = (torch.autograd.grad(y.pow(3).sum(), x)[0] for y in (compiled, turn(x, phase)))
    close(*both, 1e-12)
