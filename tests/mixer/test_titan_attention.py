"""Titan attention: grouped-query attention plus the read of a memory (SPEC M10)."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from chimera.mixer.attention import Attention
from chimera.mixer.titan_attention import TitanAttention
from chimera.position.hope import Hope
from tests.kit import close, ctx, double, parts, site
from tests.mixer import forms
from tests.reference.decay import both_sides, recurrence


def build(causal: bool = True, **options: Any) -> Any:
    here = site(causal=causal)
    return double(lambda: TitanAttention(here, parts(position=Hope), kv_heads=2, **options))


def heads(x: Tensor) -> Tensor:
    return x.unflatten(-1, (4, -1)).transpose(1, 2)


def expected(m: Any, x: Tensor) -> Tensor:
    """Grouped-query attention, and the read of the memory."""
    plain = double(lambda: Attention(site(causal=m.causal), parts(position=Hope), kv_heads=2))
    for name in ("q_proj", "k_proj", "v_proj", "o_proj", "position"):
        setattr(plain, name, getattr(m, name))
    y, own = plain(x, ctx(tokens=x.shape[1])).y, m.memory
    if own is None:
        return y
    q, k, v = heads(own.q_proj(x)), heads(own.k_proj(x)), heads(own.v_proj(x))
    q, k = q / q.norm(dim=-1, keepdim=True), k / k.norm(dim=-1, keepdim=True)
    close(own.alpha_logit.sigmoid(), torch.full((4,), 0.9).double(), 1e-6)
    g = own.alpha_logit.sigmoid().log()
    written = k * (1 - own.alpha_logit.sigmoid())[:, None, None]
    r = recurrence(q, written, v, g)[0] if m.causal else both_sides(q, written, v, g)
    return y + m.o_proj(r.transpose(1, 2).flatten(2))


class TestForms(forms.Forms):
    build, oracle = staticmethod(build), staticmethod(expected)
    options: ClassVar = [{"memory": True, "chunk_size": 8}, {}]
    encoders, constant, wide, tokens = True, False, False, (33,)


def test_the_cache_holds_the_groups_only() -> None:
    m = build()
    state = m(torch.randn(2, 6, 32).double(), ctx(tokens=6), m.init_state(2)).state
    assert state.cache.k.shape == (2, 2, 6, 8)
    assert not state.memory.numel()
