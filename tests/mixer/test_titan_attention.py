"""Titan attention: grouped-query attention plus the read of a memory (SPEC M10)."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from chimera.mixer.attention import Attention
from chimera.mixer.titan_attention import TitanAttention
from chimera.position.hope import Hope
from tests.kit import close, continues, ctx, double, parts, ragged, site
from tests.reference.decay import both_sides, recurrence

WAYS = pytest.mark.parametrize("causal", [True, False], ids=["decoder", "encoder"])


def build(causal: bool = True, **options: Any) -> Any:
    here = site(causal=causal)
    return double(lambda: TitanAttention(here, parts(position=Hope), kv_heads=2, **options))


def heads(x: Tensor) -> Tensor:
    return x.unflatten(-1, (4, -1)).transpose(1, 2)


@WAYS
def test_without_memory_it_is_grouped_query_attention(causal: bool) -> None:
    m = build(causal)
    plain = double(lambda: Attention(site(causal=causal), parts(position=Hope), kv_heads=2))
    plain.load_state_dict(m.state_dict())
    x, here = torch.randn(2, 9, 32).double(), ctx(tokens=9)
    close(m(x, here).y, plain(x, here).y)


@WAYS
def test_memory_adds_its_read(causal: bool) -> None:
    m, without = build(causal, memory=True), build(causal)
    without.load_state_dict(m.state_dict(), strict=False)
    x, here = torch.randn(2, 9, 32).double(), ctx(tokens=9)
    own = m.memory
    q, k, v = heads(own.q_proj(x)), heads(own.k_proj(x)), heads(own.v_proj(x))
    q, k = q / q.norm(dim=-1, keepdim=True), k / k.norm(dim=-1, keepdim=True)
    alpha = torch.full((4,), 0.9).double()
    close(own.alpha_logit.sigmoid(), alpha, 1e-6)
    g = own.alpha_logit.sigmoid().log()
    written = k * (1 - own.alpha_logit.sigmoid())[:, None, None]
    r = recurrence(q, written, v, g)[0] if causal else both_sides(q, written, v, g)
    read = m.o_proj(r.transpose(1, 2).flatten(2))
    close(m(x, here).y, without(x, here).y + read)


@pytest.mark.parametrize("memory", [True, False])
def test_prefill_and_decode_equal_the_full_pass(memory: bool) -> None:
    continues(build(memory=memory), [6, 1], 4, left=True)


@WAYS
@pytest.mark.parametrize("left", [True, False], ids=["left", "right"])
def test_padding_changes_nothing(causal: bool, left: bool) -> None:
    m = build(causal, memory=True)
    mask = ragged([11, 3, 1], left=left)
    x = torch.randn(3, 11, 32).double()
    y = m(x, ctx(mask)).y
    assert torch.isfinite(y).all()
    for row, got, real in zip(x, y, mask, strict=True):
        close(got[real], m(row[real][None], ctx(tokens=int(real.sum()))).y[0])


def test_the_cache_holds_the_groups_only() -> None:
    m = build()
    state = m(torch.randn(2, 6, 32).double(), ctx(tokens=6), m.init_state(2)).state
    assert state.cache.k.shape == (2, 2, 6, 8)
    assert not state.memory.numel()


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="kv_heads=4 does not divide heads=2"):
        TitanAttention(site(heads=2), parts(), kv_heads=4)
    with pytest.raises(ValueError, match="heads=3"):
        TitanAttention(site(), parts(), heads=3)
