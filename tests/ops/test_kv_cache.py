"""Key-value cache: extended in place, immutable, of the size in the paper."""

from __future__ import annotations

import pytest
import torch

from chimera.contract_tests import zoo
from chimera.ops.attention import KVCache
from tests.kit import close

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
