"""The selective scan by chunks, and convolutions, short and long, equal their definitions.

In values, states and gradients; with padding.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from chimera.ops import scan
from chimera.ops.conv import causal_conv
from chimera.ops.long_conv import convolve
from chimera.ops.scan import selective_scan, step
from tests.kit import close, grads
from tests.reference.recurrences import causal_conv as naive_conv
from tests.reference.recurrences import long_conv
from tests.reference.recurrences import selective_scan as naive

BATCH, WIDTH, STATES = 3, 3, 4


def _inputs(tokens: int, batch: int = BATCH) -> list[Tensor]:
    wide = torch.float64
    leaves = [
        torch.randn(batch, tokens, WIDTH, dtype=wide),
        torch.rand(batch, tokens, WIDTH, dtype=wide),
        -torch.rand(WIDTH, STATES, dtype=wide) * 3,
        torch.randn(batch, tokens, STATES, dtype=wide),
        torch.randn(batch, tokens, STATES, dtype=wide),
        torch.randn(WIDTH, dtype=wide),
        torch.randn(batch, STATES, WIDTH, dtype=wide),
    ]
    return [leaf.requires_grad_() for leaf in leaves]


def _loss(out: tuple[Tensor, Tensor]) -> Tensor:
    """Weighted sum of outputs and final state, with a different weight for each number."""
    torch.manual_seed(1)
    return sum(((x * torch.randn(x.shape).to(x.dtype)).sum() for x in out), torch.zeros(()))


@pytest.mark.parametrize("width", [1, 200, 10**6])
@pytest.mark.parametrize("tokens", [1, 16, 17, 65])
def test_chunks_are_the_recurrence(
    tokens: int, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Values, final state, all gradients; few or all chunks at once; 1, 2 + 1 or all sequences."""
    monkeypatch.setattr(scan, "WIDTH_CPU", width)
    leaves = _inputs(tokens)
    got, want = selective_scan(*leaves), naive(*leaves)
    close(got, want, 1e-11)
    close(grads(_loss(got), leaves), grads(_loss(want), leaves), 1e-10)


def test_state_and_direct_path_may_be_left_out() -> None:
    x, delta, A, B, C, D, state = _inputs(20)
    close(
        selective_scan(x, delta, A, B, C),
        naive(x, delta, A, B, C, 0 * D, 0 * state),
        1e-11,
    )


def test_a_masked_token_is_the_identity() -> None:
    x, delta, A, B, C, D, state = _inputs(40)
    mask = torch.rand(BATCH, 40) > 0.4
    y, after = selective_scan(x, delta, A, B, C, D, state, mask)
    assert y.isfinite().all()
    for i in range(BATCH):
        row, real = slice(i, i + 1), mask[i]
        alone = [v[row, real] for v in (x, delta)] + [A] + [v[row, real] for v in (B, C)]
        close((y[row, real], after[row]), naive(*alone, D, state[row]), 1e-11)
    one = step(*(v[:, :1] for v in (x, delta)), A, B[:, :1], C[:, :1], D, state, mask[:, :1])
    close(one[1][~mask[:, 0]], state[~mask[:, 0]], 0)


def test_strong_decay_and_large_steps_stay_finite() -> None:
    """Division by products of decays would overflow: exp(−Δ A) is exp(3000)."""
    x, delta, A, B, C, D, state = leaves = [v.detach().float() for v in _inputs(64)]
    delta, A = delta * 100, A * 10
    leaves = [v.requires_grad_() for v in (x, delta, A, B, C, D, state)]
    y, after = selective_scan(*leaves)
    want = naive(*(v.double() for v in leaves))
    close((y.double(), after.double()), want, 1e-4)
    assert all(g.isfinite().all() for g in grads(y.sum() + after.sum(), leaves))


@pytest.mark.parametrize("backward_inside", [False, True])
def test_autocast_does_not_reach_the_scan(backward_inside: bool) -> None:
    leaves = [v.detach().float().requires_grad_() for v in _inputs(40)]
    want = selective_scan(*leaves)
    with torch.autocast("cpu", torch.bfloat16):
        got = selective_scan(*leaves)
        one = step(*(v[:, :1] for v in leaves[:2]), leaves[2], *(v[:, :1] for v in leaves[3:5]),
                   *leaves[5:])  # fmt: skip
        inside = grads(_loss(got), leaves) if backward_inside else None
    close(got, want, 0)
    assert one[0].dtype == one[1].dtype == torch.float32
    close(inside or grads(_loss(got), leaves), grads(_loss(want), leaves), 0)


def test_half_precision_goes_in_and_the_result_is_wide() -> None:
    x, *rest = (v.detach().float() for v in _inputs(20))
    y, state = selective_scan(x.bfloat16(), *rest)
    assert y.dtype == state.dtype == torch.float32
    close(y, selective_scan(x.bfloat16().float(), *rest)[0], 0)


def test_what_is_kept_for_backward_is_small() -> None:
    """One state per chunk instead of per token: t·e·n/16 numbers, and the inputs."""
    tokens, width, states = 256, 64, 16
    x, delta = torch.randn(2, 1, tokens, width)
    A = -torch.rand(width, states, requires_grad=True)
    B, C = torch.randn(2, 1, tokens, states)
    kept: list[int] = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda v: kept.append(v.numel()) or v, lambda v: v
    ):
        selective_scan(x, delta, A, B, C)
    assert sum(kept) < tokens * width * states / 4


ROWS, CHANNELS = 3, 5


def conv_inputs(tokens: int, kernel: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    wide = torch.float64
    return (
        torch.randn(ROWS, tokens, CHANNELS, dtype=wide, requires_grad=True),
        torch.randn(CHANNELS, kernel, dtype=wide, requires_grad=True),
        torch.randn(CHANNELS, dtype=wide, requires_grad=True),
        torch.randn(ROWS, kernel - 1, CHANNELS, dtype=wide, requires_grad=True),
    )


@pytest.mark.parametrize("compiling", [False, True])
@pytest.mark.parametrize(("tokens", "kernel"), [(1, 4), (2, 3), (17, 1), (17, 4)])
def test_values_and_gradients_are_those_of_the_definition(
    tokens: int, kernel: int, compiling: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.compiler.is_compiling", lambda: compiling)
    x, weight, bias, tail = leaves = conv_inputs(tokens, kernel)
    y, after = causal_conv(x, weight, bias, tail)
    want = torch.stack([naive_conv(x[i], weight, bias, tail[i]) for i in range(ROWS)])
    last = torch.cat([tail, x], 1)[:, tokens:]
    close(y, want, 1e-12)
    close(after, last, 0)
    weights = torch.randn_like(y), torch.randn_like(after)
    got = grads((y * weights[0]).sum() + (after * weights[1]).sum(), leaves)
    close(got, grads((want * weights[0]).sum() + (last * weights[1]).sum(), leaves), 1e-12)


@pytest.mark.parametrize("continued", [False, True])
def test_padding_gives_the_numbers_and_the_tail_of_the_unpadded(continued: bool) -> None:
    x, weight, bias, tail = conv_inputs(11, 4)
    mask = torch.rand(ROWS, 11) > 0.4
    y, after = causal_conv(x, weight, bias, tail if continued else None, mask)
    assert y.isfinite().all()
    for i in range(ROWS):
        alone = x[i : i + 1, mask[i]]
        want = causal_conv(alone, weight, bias, tail[i : i + 1] if continued else None)
        close((y[i : i + 1, mask[i]], after[i : i + 1]), want, 1e-12)


def test_gradients_do_not_pass_through_padding() -> None:
    x, weight, bias, tail = conv_inputs(11, 4)
    mask = torch.rand(ROWS, 11) > 0.4
    y, _ = causal_conv(x, weight, bias, tail, mask)
    (dx,) = grads(y[mask].square().sum(), [x])
    assert not dx[~mask].any()
    assert dx[mask].any()


def test_half_precision_inputs_accumulate_in_float32() -> None:
    x, weight, bias, tail = (v.detach().float() for v in conv_inputs(9, 4))
    x, tail = x.bfloat16(), tail.bfloat16()
    y, after = causal_conv(x, weight, bias, tail)
    assert y.dtype == after.dtype == torch.bfloat16
    want, _ = causal_conv(x.float(), weight, bias, tail.float())
    close(y, want.bfloat16(), 0)


def test_the_tail_holds_no_memory_of_the_sequence() -> None:
    x, weight, bias, _ = conv_inputs(50, 4)
    _, tail = causal_conv(x, weight, bias)
    assert tail.untyped_storage().nbytes() == tail.nbytes


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_are_the_bits_of_autograd(dtype: torch.dtype) -> None:
    x, w, bias = torch.randn(2, 9, 6).to(dtype), torch.randn(6, 4), torch.randn(6)
    given = [each.requires_grad_() for each in (x, w, bias)]
    g = torch.randn(2, 9, 6).to(dtype)
    padded = torch.cat([x.new_zeros(2, 3, 6), x], 1)
    plain = torch.addcmul(bias, padded[:, :9], w[:, 0])
    for j in range(1, 4):
        plain = torch.addcmul(plain, padded[:, j : j + 9], w[:, j])
    wanted = torch.autograd.grad(plain.to(dtype), given, g)
    y = causal_conv(x, w, bias)[0]
    assert torch.equal(y, plain.to(dtype))
    for one, other in zip(torch.autograd.grad(y, given, g), wanted, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(("tokens", "last"), [(1, 1), (2, 2), (48, 1), (49, 65), (65, 2)])
def test_is_the_sum(tokens: int, last: int) -> None:
    x = torch.randn(2, tokens, 3, dtype=torch.float64, requires_grad=True)
    h = torch.randn(tokens, 3, dtype=torch.float64, requires_grad=True)
    last = min(last, tokens)
    got, want = convolve(x, h, last), long_conv(x, h)[:, tokens - last :]
    close(got, want, 1e-10)
    weight = torch.randn_like(got)
    close(grads((got * weight).sum(), [x, h]), grads((want * weight).sum(), [x, h]), 1e-10)


def test_half_precision_adds_in_float32() -> None:
    x, h = torch.full((1, 4096, 1), 50.0).half(), torch.ones(4096, 1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = convolve(x, h, 4096)
    assert y.dtype == torch.float32
    assert (y[0, :, 0] - 50 * torch.arange(1.0, 4097)).abs().max() < 1e-6 * y.max()
