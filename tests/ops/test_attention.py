"""ops.attention against the definition, and its cache: in place, immutable, small."""

from __future__ import annotations

import pytest
import torch

from chimera.contract_tests import zoo
from chimera.ops.attention import Heads, KVCache, attend, of_each_query, sdpa
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
    for dense in (False, True):
        y = attend(q, k, v, mask=mask, bias=bias, causal=causal, dense=dense)
        close(y, want, 1e-12)


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


B, G, K = 2, 3, 4


def tokens(t: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    return (
        torch.randn(B, G, t, K),
        torch.randn(B, G, t, K),
        torch.randint(99, (1, t)),
        torch.rand(B, t) > 0.5,
    )


@torch.no_grad()
def test_extending_equals_joining() -> None:
    grown = joined = KVCache.empty(B, G, K, K, torch.empty(0))
    for number, t in enumerate((5, 1, 1, 90, 1, 300, 1)):
        k, v, pos, mask = tokens(t)
        real = None if number % 2 else mask
        grown, joined = grown.extend(k, v, pos, real), joined.joined(k, v, pos, real)
        close(tuple(grown), tuple(joined), 0.0)


@torch.no_grad()
def test_new_tokens_are_written_into_the_free_buffer() -> None:
    cache = KVCache.empty(B, G, K, K, torch.empty(0)).extend(*tokens(10))
    places = {cache.k.data_ptr()}
    for _ in range(60):
        cache = cache.extend(*tokens(1))
        places.add(cache.k.data_ptr())
    assert len(places) == 1
    moved = 0
    for _ in range(2000):
        longer = cache.extend(*tokens(1))
        moved += longer.k.data_ptr() != cache.k.data_ptr()
        cache = longer
    assert moved < 30
    assert cache.k.untyped_storage().nbytes() <= 1.125 * cache.k.nbytes + 64 * B * G * K * 4


@torch.no_grad()
def test_two_continuations_of_one_cache_are_independent() -> None:
    start = KVCache.empty(B, G, K, K, torch.empty(0)).extend(*tokens(5))
    before = [x.clone() for x in start]
    first, second = tokens(2), tokens(2)
    one, other = start.extend(*first), start.extend(*second)
    again = one.extend(*tokens(1))
    close(one.k[:, :, 5:], first[0], 0.0)
    close(other.k[:, :, 5:], second[0], 0.0)
    close(again.k[:, :, :7], one.k, 0.0)
    close(list(start), before, 0.0)


def test_gradients_flow_through_a_cache() -> None:
    k, v, pos, mask = tokens(3)
    k.requires_grad_()
    cache = KVCache.empty(B, G, K, K, torch.empty(0)).extend(k, v, pos, mask)
    cache = cache.extend(*tokens(1))
    assert torch.autograd.grad(cache.k.sum(), k)[0].eq(1).all()


@pytest.mark.parametrize(("mixer", "kv_heads"), [("attention", 4), ("gqa", 1), ("mqa", 1)])
@torch.no_grad()
def test_the_cache_holds_2_n_kv_d_k_n_floats(mixer: str, kv_heads: int) -> None:
    """The formula of SAIDL 2.5, at width 32 with 4 heads after 50 tokens."""
    model = zoo.model(causal=True, mixer=mixer).eval()
    state = model(zoo.tokens(1, 20), state=model.init_state(1)).state
    for _ in range(30):
        state = model(zoo.tokens(1, 1), state=state).state
    for cache in state.slots:
        assert cache.k.numel() + cache.v.numel() == 2 * kv_heads * 8 * 50
