"""Delta rule: every form equals the recurrence; equations that SPEC E1 corrects do not."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from chimera.ops import delta
from tests.kit import close
from tests.reference.delta import delta as naive


def make(
    tokens: int, *, steps: int = 1, top: float = 1.0, dtype: torch.dtype = torch.float64
) -> list[Tensor]:
    """q, k, v, β, decay, state of `steps` writes a token, β below `top`."""
    keys = F.normalize(torch.randn(2, 2, tokens, steps, 6, dtype=dtype), dim=-1)
    q, v = torch.randn(2, 2, tokens, 6, dtype=dtype), torch.randn(keys.shape, dtype=dtype)
    beta = top * torch.rand(2, 2, tokens, steps, 1, dtype=dtype)
    decay = -torch.rand(2, 2, tokens, dtype=dtype)
    return [q, keys, v, beta, decay, torch.randn(2, 2, 6, 6, dtype=dtype)]


def test_a_full_step_writes_and_a_double_step_reflects() -> None:
    k = F.normalize(torch.randn(1, 1, 1, 1, 4, dtype=torch.float64), dim=-1)
    v = torch.randn(1, 1, 1, 1, 4, dtype=torch.float64)
    h = torch.randn(1, 1, 4, 4, dtype=torch.float64)
    one = torch.ones(1, 1, 1, 1, 1, dtype=torch.float64)
    close(delta.chunkwise(k[:, :, :, 0], k, v, one, None, h)[0], v[:, :, :, 0])
    close(
        delta.chunkwise(k[:, :, :, 0], k, 0 * v, 2 * one, None, h)[0], -k[:, :, :, 0] @ h
    )  # a negative eigenvalue


def paper(q: Tensor, k: Tensor, v: Tensor, beta: Tensor, *, sign: int, own: bool) -> Tensor:
    """One chunk by TPTT eq. 12-15, T = I + `sign`·tril; `own`: reads after the update (E1)."""
    t = torch.eye(len(k)).to(k) + sign * ((k * beta) @ k.T).tril(-1)
    y = torch.linalg.solve(t, v * beta)  # the state before the chunk is zero
    return (q @ k.T).tril() @ y if own else q @ torch.zeros(k.shape[1], v.shape[1]).to(k)


def test_e1_minus_and_chunk_start_reads_are_not_the_recurrence() -> None:
    q, k, v, beta, _, state = make(24)
    right = naive(q, k, v, beta, None, torch.zeros_like(state))[0][0, 0]
    one = (q[0, 0], k[0, 0, :, 0], v[0, 0, :, 0], beta[0, 0, :, 0])
    close(paper(*one, sign=1, own=True), right)
    close(delta.parallel(q, k, v, beta)[0][0, 0], right)
    wrong = [paper(*one, sign=-1, own=True), paper(*one, sign=1, own=False)]
    scale = right.abs().max()
    assert all((w - right).abs().max() > 0.1 * scale for w in wrong)


@pytest.mark.parametrize("keys", ["random", "one"])
def test_float32_stays_near_float64(keys: str) -> None:
    """β up to 2 with equal keys gives the worst-conditioned triangular matrix."""
    q, k, v, beta, decay, state = make(513, steps=2, top=2.0)
    if keys == "one":
        k = k[:, :, :1, :1].expand_as(k)
    wide, h = delta.chunkwise(q, k, v, beta, decay, state)
    narrow = delta.chunkwise(*(y.float() for y in (q, k, v, beta, decay, state)))
    torch.testing.assert_close(narrow, (wide.float(), h.float()), rtol=1e-4, atol=1e-4)


def test_a_chunk_that_forgets_all_costs_its_neighbours_no_digits() -> None:
    """float32; no weight is the difference of two sums near 60000."""
    q, k, v, beta, _, h = make(128, dtype=torch.float32)
    g = torch.where(torch.arange(128) % 64 < 32, -2000.0, -0.01).expand(2, 2, 128).contiguous()
    got = delta.chunkwise(q, k, v, beta, g, h)
    want = naive(*(x.double() for x in (q, k, v, beta, g, h)))
    for x, y in zip(got, want, strict=True):
        assert (x - y).abs().max() < 3e-6 * y.abs().max()


def test_low_precision_accumulates_in_float32() -> None:
    x = [y.bfloat16() for y in make(70)]
    wide = delta.chunkwise(*(y.float() for y in x))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y, h = delta.chunkwise(*x)
    assert y.dtype == h.dtype == torch.float32
    close((y, h), wide, 1e-6)
