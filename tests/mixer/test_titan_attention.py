"""Titan attention: grouped-query attention plus the read of a memory (SPEC M10)."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from chimera.mixer.attention import Attention
from chimera.mixer.titan_attention import TitanAttention
from chimera.position.hope import Hope
from tests.kit import ctx, double, parts, site
from tests.mixer import forms
from tests.reference.memory import read


def build(causal: bool = True, **options: Any) -> Any:
    here = site(causal=causal)
    return double(lambda: TitanAttention(here, parts(position=Hope), kv_heads=2, **options))


def expected(m: Any, x: Tensor) -> Tensor:
    """Grouped-query attention, and the read of the memory."""
    plain = double(lambda: Attention(site(causal=m.causal), parts(position=Hope), kv_heads=2))
    for name in ("q_proj", "k_proj", "v_proj", "o_proj", "position"):
        setattr(plain, name, getattr(m, name))
    y = plain(x, ctx(tokens=x.shape[1])).y
    return y if m.memory is None else y + m.o_proj(read(m.memory, x, causal=m.causal))


class TestForms(forms.Forms):
    build, oracle = staticmethod(build), staticmethod(expected)
    options: ClassVar = [{"memory": True, "chunk_size": 8}, {}]
    encoders, constant, wide, tokens = True, False, False, (33,)


def test_the_cache_holds_the_groups_only() -> None:
    m = build()
    state = m(torch.randn(2, 6, 32).double(), ctx(tokens=6), m.init_state(2)).state
    assert state.cache.k.shape == (2, 2, 6, 8)
    assert not state.memory.numel()
