"""Mixers whose memory is fitted or learned as they read, against their equations (SPEC M9, M10)."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from chimera.mixer.attention import Attention
from chimera.mixer.mamba import Mamba
from chimera.mixer.mesa import Mesa
from chimera.mixer.titan_attention import TitanAttention
from chimera.mixer.titan_memory import TitanMemory
from chimera.mixer.ttt_linear import TTTLinear
from chimera.position.hope import Hope
from chimera.position.rope import Rotary
from tests.kit import close, ctx, double, parts, site
from tests.mixer import forms
from tests.mixer.forms import join, rms, split, unit
from tests.reference.recurrences import memory_read, mesa, ttt


class TestMesa(forms.Forms):
    mixer, given = Mesa, {"tolerance": 0.0, "steps": 50}
    options: ClassVar = [
        {"heads": 2, "conv": 0, "ridge": 0.1, "chunk": 16},
        pytest.param({}, marks=pytest.mark.slow),
    ]

    @staticmethod
    def stir(m: Any) -> None:
        m.decay_bias.normal_(3)
        m.beta_bias.normal_()
        m.ridge.normal_()

    @staticmethod
    def oracle(m: Any, x: Tensor) -> Tensor:
        """Equations of the module's docstring."""
        mixed = forms.conv(torch.cat([m.q_proj(x), m.k_proj(x)], -1), m.conv.weight)
        q, k = (unit(split(y, m.heads)) for y in F.silu(mixed).chunk(2, -1))
        beta = (m.beta_proj(x) + m.beta_bias).sigmoid().mT
        gamma = (m.decay_proj(x) + m.decay_bias).sigmoid().mT
        ridge, width = m.lowest + torch.log1p(m.ridge.exp()), k.shape[-1]
        empty = x.new_zeros(len(x), m.heads, width, 2 * width)
        y, _ = mesa(q, k, split(m.v_proj(x), m.heads), beta, gamma.log(), ridge, empty)
        return m.o_proj(join(rms(y, 1e-5) * m.norm))


def test_the_ridge_starts_at_one() -> None:
    mixer = Mesa(site(), parts(), ridge=0.4)
    close(mixer.lowest + F.softplus(mixer.ridge), torch.ones(4, 8), 1e-6)


class TestTTT(forms.Forms):
    mixer = TTTLinear
    options: ClassVar = [
        {"heads": 2, "mini_batch": 5, "rate": 0.5},
        pytest.param({}, marks=pytest.mark.slow),
    ]

    @staticmethod
    def stir(m: Any) -> None:
        for p in (m.inner, m.scale, m.shift, m.rate_bias):
            p.add_(0.3 * torch.randn_like(p))
        m.places.add_(0.1 * torch.rand_like(m.places))

    @staticmethod
    def oracle(m: Any, x: Tensor) -> Tensor:
        """Equations of the module's docstring."""
        q, k, v = (split(p(x), m.heads) for p in (m.q_proj, m.k_proj, m.v_proj))
        eta = (m.rate_proj(x) + m.rate_bias).sigmoid().mT * m.rate
        places = (1 / torch.arange(1, len(m.places) + 1) + m.places).relu()
        z, _ = ttt(q, k, v, eta, m.inner, m.scale, m.shift, places)
        return m.o_proj(m.norm(join(z)))


def test_queries_and_keys_of_ttt_turn_within_a_mini_batch() -> None:
    """Rotations start anew with each mini-batch: it does not matter how many came before."""
    mixer = double(lambda: TTTLinear(site(), parts(position=Rotary), mini_batch=4))
    x = torch.randn(1, 4, 32, dtype=torch.float64)
    close(mixer(x, ctx(tokens=4)).y, mixer(x, ctx(tokens=4, start=8)).y)
    assert not torch.allclose(mixer(x, ctx(tokens=4)).y, mixer(x, ctx(tokens=4, start=1)).y)


class TestTitanMemory(forms.Forms):
    mixer = TitanMemory
    options: ClassVar = [{"chunk_size": 16}, {"normalise": False, "chunk_size": 8}]
    size = 1.0

    @staticmethod
    def stir(m: Any) -> None:
        """Heads with different α."""
        m.memory.alpha_logit += torch.linspace(-2, 2, 4)

    @staticmethod
    def oracle(m: Any, x: Tensor) -> Tensor:
        y, gate, _ = m.ssm(x)
        return m.out_proj((y + memory_read(m.memory, x)) * gate)


def test_without_values_titan_memory_is_mamba() -> None:
    mixer = TestTitanMemory.build()
    mixer.memory.v_proj.weight.data.zero_()
    plain = double(lambda: Mamba(site(), parts()), seed=1)
    own = mixer.state_dict()
    plain.load_state_dict({name: own[name] for name in plain.state_dict()})
    x = torch.randn(2, 20, 32, dtype=torch.float64)
    close(mixer(x, ctx(tokens=20)).y, plain(x, ctx(tokens=20)).y, 1e-12)


@pytest.mark.parametrize("learn", [True, False])
def test_alpha_starts_as_asked_and_is_learned_by_option(learn: bool) -> None:
    mixer = TitanMemory(site(), parts(), alpha=0.97, learn_alpha=learn)
    close(torch.sigmoid(mixer.memory.alpha_logit), torch.full((4,), 0.97), 1e-6)
    assert ("memory.alpha_logit" in dict(mixer.named_parameters())) == learn
    assert "memory.alpha_logit" in mixer.state_dict()


class TestTitanAttention(forms.Forms):
    mixer, given = TitanAttention, {"position": Hope, "kv_heads": 2}
    options: ClassVar = [{"memory": True, "chunk_size": 8}, {}]
    encoders, constant, wide, tokens = True, False, False, (33,)

    @staticmethod
    def oracle(m: Any, x: Tensor) -> Tensor:
        """Grouped-query attention, and the read of the memory."""
        plain = double(lambda: Attention(site(causal=m.causal), parts(position=Hope), kv_heads=2))
        for name in ("q_proj", "k_proj", "v_proj", "o_proj", "position"):
            setattr(plain, name, getattr(m, name))
        y = plain(x, ctx(tokens=x.shape[1])).y
        return y if m.memory is None else y + m.o_proj(memory_read(m.memory, x, causal=m.causal))


def test_the_cache_of_titan_attention_holds_the_groups_only() -> None:
    m = TestTitanAttention.build()
    state = m(torch.randn(2, 6, 32).double(), ctx(tokens=6), m.init_state(2)).state
    assert state.cache.k.shape == (2, 2, 6, 8)
    assert not state.memory.numel()
