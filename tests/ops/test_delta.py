"""Delta rule: every form equals the recurrence; equations that SPEC E1 corrects do not."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from chimera.ops import delta
from tests.kit import close
from tests.reference.delta import delta as naive


@dataclass(frozen=True)
class Case:
    """Type of inputs; the cases include those of the paper, DeltaNet and DeltaProduct."""

    steps: int = 1
    reads: int = 1  # query heads per key-value head
    channels: bool = False  # one β per channel
    decay: bool = False
    top: float = 1.0

    def make(self, tokens: int, dtype: torch.dtype = torch.float64) -> list[Tensor | None]:
        """q, k, v, β, decay, state."""
        b, g, k = 2, 2, 6
        keys = F.normalize(torch.randn(b, g, tokens, self.steps, k, dtype=dtype), dim=-1)
        found = [
            torch.randn(b, g * self.reads, tokens, k, dtype=dtype),
            keys,
            torch.randn(b, g, tokens, self.steps, k, dtype=dtype),
            self.top * torch.rand(b, g, tokens, self.steps, k if self.channels else 1, dtype=dtype),
            -torch.rand(b, g, tokens, dtype=dtype) if self.decay else None,
            torch.randn(b, g, k, k, dtype=dtype),
        ]
        return [x if x is None else x.requires_grad_() for x in found]


def by_token(*x: Tensor | None) -> tuple[Tensor, Tensor]:
    """Naive recurrence, with key-value heads repeated for the query heads that share them."""
    q, *rest = x
    reads = q.shape[1] // rest[0].shape[1]
    rest = [None if y is None else y.repeat_interleave(reads, 1) for y in rest]
    y, h = naive(q, *rest)
    return y, h[:, ::reads]


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
    q, k, v, beta, _, state = Case().make(24)
    right = by_token(q, k, v, beta, None, torch.zeros_like(state))[0][0, 0]
    one = (q[0, 0], k[0, 0, :, 0], v[0, 0, :, 0], beta[0, 0, :, 0])
    close(paper(*one, sign=1, own=True), right)
    close(delta.parallel(q, k, v, beta)[0][0, 0], right)
    wrong = [paper(*one, sign=-1, own=True), paper(*one, sign=1, own=False)]
    scale = right.abs().max()
    assert all((w - right).abs().max() > 0.1 * scale for w in wrong)


@pytest.mark.parametrize("keys", ["random", "one"])
def test_float32_stays_near_float64(keys: str) -> None:
    """β up to 2 with equal keys gives the worst-conditioned triangular matrix."""
    x = Case(steps=2, top=2.0, decay=True).make(513)
    q, k, v, beta, decay, state = (y.detach() for y in x)
    if keys == "one":
        k = k[:, :, :1, :1].expand_as(k)
    wide, h = delta.chunkwise(q, k, v, beta, decay, state)
    narrow = delta.chunkwise(*(y.float() for y in (q, k, v, beta, decay, state)))
    torch.testing.assert_close(narrow, (wide.float(), h.float()), rtol=1e-4, atol=1e-4)


def test_a_chunk_that_forgets_all_costs_its_neighbours_no_digits() -> None:
    """float32; no weight is the difference of two sums near 60000."""
    q, k, v, beta, _, h = (
        None if x is None else x.detach() for x in Case(decay=True).make(128, torch.float32)
    )
    g = torch.where(torch.arange(128) % 64 < 32, -2000.0, -0.01).expand(2, 2, 128).contiguous()
    got = delta.chunkwise(q, k, v, beta, g, h)
    want = by_token(*(x.double() for x in (q, k, v, beta, g, h)))
    for x, y in zip(got, want, strict=True):
        assert (x - y).abs().max() < 3e-6 * y.abs().max()


def test_low_precision_accumulates_in_float32() -> None:
    x = [y.detach().bfloat16() for y in Case(decay=True).make(70)]
    wide = delta.chunkwise(*(y.float() for y in x))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y, h = delta.chunkwise(*x)
    assert y.dtype == h.dtype == torch.float32
    close((y, h), wide, 1e-6)
