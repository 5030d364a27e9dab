"""ops.scan: the chunk-parallel form equals the recurrence in values, states and gradients."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from chimera.ops import scan
from chimera.ops.scan import selective_scan, step
from tests import kit
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
    kit.close(got, want, 1e-11)
    kit.close(kit.grads(_loss(got), leaves), kit.grads(_loss(want), leaves), 1e-10)


def test_state_and_direct_path_may_be_left_out() -> None:
    x, delta, A, B, C, D, state = _inputs(20)
    kit.close(
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
        kit.close((y[row, real], after[row]), naive(*alone, D, state[row]), 1e-11)
    one = step(*(v[:, :1] for v in (x, delta)), A, B[:, :1], C[:, :1], D, state, mask[:, :1])
    kit.close(one[1][~mask[:, 0]], state[~mask[:, 0]], 0)


def test_strong_decay_and_large_steps_stay_finite() -> None:
    """Division by products of decays would overflow: exp(−Δ A) is exp(3000)."""
    x, delta, A, B, C, D, state = leaves = [v.detach().float() for v in _inputs(64)]
    delta, A = delta * 100, A * 10
    leaves = [v.requires_grad_() for v in (x, delta, A, B, C, D, state)]
    y, after = selective_scan(*leaves)
    want = naive(*(v.double() for v in leaves))
    kit.close((y.double(), after.double()), want, 1e-4)
    assert all(g.isfinite().all() for g in kit.grads(y.sum() + after.sum(), leaves))


@pytest.mark.parametrize("backward_inside", [False, True])
def test_autocast_does_not_reach_the_scan(backward_inside: bool) -> None:
    leaves = [v.detach().float().requires_grad_() for v in _inputs(40)]
    want = selective_scan(*leaves)
    with torch.autocast("cpu", torch.bfloat16):
        got = selective_scan(*leaves)
        one = step(*(v[:, :1] for v in leaves[:2]), leaves[2], *(v[:, :1] for v in leaves[3:5]),
                   *leaves[5:])  # fmt: skip
        inside = kit.grads(_loss(got), leaves) if backward_inside else None
    kit.close(got, want, 0)
    assert one[0].dtype == one[1].dtype == torch.float32
    kit.close(inside or kit.grads(_loss(got), leaves), kit.grads(_loss(want), leaves), 0)


def test_half_precision_goes_in_and_the_result_is_wide() -> None:
    x, *rest = (v.detach().float() for v in _inputs(20))
    y, state = selective_scan(x.bfloat16(), *rest)
    assert y.dtype == state.dtype == torch.float32
    kit.close(y, selective_scan(x.bfloat16().float(), *rest)[0], 0)


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
