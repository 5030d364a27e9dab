"""What every recurrence of `ops` keeps: all forms equal an oracle, states and gradients too."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from tests.kit import close, grads

Result = tuple[Tensor, Tensor]
#: Largest difference, absolute and relative.
EXACT = 1e-10


def same(got: Result, want: Result, inputs: list[Tensor | None]) -> None:
    """Compare outputs, final states, and gradients of both with respect to all inputs."""
    close(got, want, EXACT)
    weights = [torch.randn_like(x) / x.numel() ** 0.5 for x in got]
    losses = [
        sum((x * w).sum() for x, w in zip(pair, weights, strict=True)) for pair in (got, want)
    ]
    over = [x for x in inputs if x is not None]
    close(grads(losses[0], over), grads(losses[1], over), EXACT)


def in_steps(op: ModuleType, inputs: list[Tensor | None]) -> Result:
    """Token by token."""
    *rest, state = inputs
    reads: list[Tensor] = []
    assert state is not None
    for t in range(len_of(rest)):
        y, state = op.step(*(None if x is None else x[:, :, t : t + 1] for x in rest), state)
        reads.append(y)
    return torch.cat(reads, 2), state


def in_pieces(op: ModuleType, inputs: list[Tensor | None], width: int, **options: Any) -> Result:
    """Chunkwise, `width` tokens at a time, with the state handed on."""
    *rest, state = inputs
    reads: list[Tensor] = []
    for at in range(0, len_of(rest), width):
        here = (None if x is None else x[:, :, at : at + width] for x in rest)
        y, state = op.chunkwise(*here, state, **options)
        reads.append(y)
    assert state is not None
    return torch.cat(reads, 2), state


def every_form(
    op: ModuleType, oracle: Callable[..., Result], inputs: list[Tensor | None], chunk: int
) -> None:
    """Chunkwise, in pieces and token by token; without a state, no state is returned."""
    want = oracle(*inputs)
    same(op.chunkwise(*inputs, chunk=chunk), want, inputs)
    same(in_steps(op, inputs), want, inputs)
    same(in_pieces(op, inputs, 7, chunk=chunk), want, inputs)
    *rest, state = inputs
    assert state is not None
    y, none = op.chunkwise(*rest, chunk=chunk)
    assert none is None
    close(y, oracle(*rest, torch.zeros_like(state))[0], EXACT)


def len_of(inputs: list[Tensor | None]) -> int:
    """Tokens of the first input."""
    assert inputs[0] is not None
    return inputs[0].shape[2]


def leaves(*inputs: Tensor | None) -> list[Tensor | None]:
    """The same values in float64, as leaves."""
    return [None if x is None else x.double().detach().requires_grad_() for x in inputs]
