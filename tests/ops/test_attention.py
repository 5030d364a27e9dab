"""ops.attention against the definition: grouped heads, padding, the last t of s queries."""

from __future__ import annotations

import pytest
import torch

from chimera.ops.attention import Heads, attend, of_each_query, sdpa
from tests.kit import close, ragged


@pytest.mark.sampled(16)
@pytest.mark.parametrize("t", [1, 3, 7])
@pytest.mark.parametrize("g", [1, 2, 4])
@pytest.mark.parametrize("causal", [True, False], ids=["decoder", "encoder"])
@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize("biased", [True, False])
def test_is_the_softmax_over_what_a_query_may_see(
    t: int, g: int, causal: bool, padded: bool, biased: bool
) -> None:
    """The last t of 7 tokens, 4 query heads, g key heads; a padded query attends to itself."""
    q, k, v = torch.randn(2, 4, t, 5), torch.randn(2, g, 7, 5), torch.randn(2, g, 7, 3)
    q, k, v = q.double(), k.double(), v.double()
    mask = ragged([7, 4], left=True) if padded else None
    bias = torch.randn(1, 4, t, 7).double() if biased else None
    scores = q @ k.repeat_interleave(4 // g, 1).mT / 5**0.5 + (0.0 if bias is None else bias)
    own, keys = torch.arange(7 - t, 7)[:, None], torch.arange(7)
    seen = (keys <= own) | torch.tensor(not causal)
    if mask is not None:
        seen = (seen & mask[:, None] | (keys == own))[:, None]
    want = scores.masked_fill(~seen, -torch.inf).softmax(-1) @ v.repeat_interleave(4 // g, 1)
    close(attend(q, k, v, mask=mask, bias=bias, causal=causal), want, 1e-12)


@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_a_lone_key_head_gets_the_gradients_of_repeated_ones(
    padded: bool, dtype: torch.dtype
) -> None:
    """A batch of one sample, whose key head all 4 query heads share."""
    mask = torch.tensor([[True] * 5 + [False] * 2]) if padded else None
    leaves = [torch.randn(1, n, 7, 5, dtype=dtype, requires_grad=True) for n in (4, 1, 1)]
    out = torch.randn(1, 4, 7, 5, dtype=dtype)
    got = torch.autograd.grad(attend(*leaves, mask=mask, causal=True), leaves, out)
    exact = [leaf.detach().double().requires_grad_() for leaf in leaves]
    q, k, v = exact[0], exact[1].repeat(1, 4, 1, 1), exact[2].repeat(1, 4, 1, 1)
    scores = (q @ k.mT / 5**0.5).masked_fill(torch.ones(7, 7).triu(1).bool(), -torch.inf)
    if mask is not None:
        scores = scores.masked_fill(~(mask[:, None] | torch.eye(7).bool()), -torch.inf)
    want = torch.autograd.grad(scores.softmax(-1) @ v, exact, out.double())
    for mine, theirs in zip(got, want, strict=True):
        close(mine.double(), theirs, 1e-12 if dtype == torch.float64 else 4e-2)


@pytest.mark.parametrize("g", [1, 2, 4])
def test_heads_repeated_for_each_query_are_those_shared(g: int) -> None:
    q, k, v = (torch.randn(2, h, 7, 5).double() for h in (4, g, g))
    want = sdpa(q, k, v, causal=True)
    close(sdpa(q, of_each_query(k, 4), of_each_query(v, 4), causal=True), want, 1e-12)


def test_a_quarter_of_the_heads_but_one_at_least() -> None:
    counts = {h: Heads.of(h, "quarter").g for h in (1, 2, 4, 8, 16)}
    assert counts == {1: 1, 2: 1, 4: 1, 8: 2, 16: 4}
    assert (Heads.of(6, None).g, Heads.of(6, 3).g) == (6, 3)
