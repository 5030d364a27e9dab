"""Titan attention: grouped-query attention plus the read of a memory (SPEC M10)."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from chimera.mixer.attention import Attention
from chimera.mixer.titan_attention import TitanAttention
from chimera.position.hope import Hope
from tests.kit import close, ctx, double, parts, site
from tests.mixer import forms
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


def expected(m: Any, x: Tensor) -> Tensor:
    """Attention, held against `Attention` above, and the read of the memory."""
    without = build(m.causal)
    without.load_state_dict(m.state_dict(), strict=False)
    own = m.memory
    q, k, v = heads(own.q_proj(x)), heads(own.k_proj(x)), heads(own.v_proj(x))
    q, k = q / q.norm(dim=-1, keepdim=True), k / k.norm(dim=-1, keepdim=True)
    close(own.alpha_logit.sigmoid(), torch.full((4,), 0.9).double(), 1e-6)
    g = own.alpha_logit.sigmoid().log()
    written = k * (1 - own.alpha_logit.sigmoid())[:, None, None]
    r = recurrence(q, written, v, g)[0] if m.causal else both_sides(q, written, v, g)
    return without(x, ctx(tokens=x.shape[1])).y + m.o_proj(r.transpose(1, 2).flatten(2))


@WAYS
def test_memory_adds_its_read(causal: bool) -> None:
    m, x = build(causal, memory=True, chunk_size=4), torch.randn(2, 9, 32).double()
    close(m(x, ctx(tokens=9)).y, expected(m, x))


class TestForms(forms.Pieces):
    build = staticmethod(build)
    options: ClassVar = [{"memory": True, "chunk_size": 8}, {}]
    encoders, constant, wide = True, False, False


def test_the_cache_holds_the_groups_only() -> None:
    m = build()
    state = m(torch.randn(2, 6, 32).double(), ctx(tokens=6), m.init_state(2)).state
    assert state.cache.k.shape == (2, 2, 6, 8)
    assert not state.memory.numel()
