"""Mixers that erase what they overwrite, against the recurrences with their weights.

Qwen3-Next of transformers holds gated DeltaNet: test_from_hf.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import pytest
import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor
from transformers.models.kimi_linear import modeling_kimi_linear as public
from transformers.models.kimi_linear.configuration_kimi_linear import KimiLinearConfig

from chimera.mixer.delta import DeltaProduct
from chimera.mixer.gated_delta import GatedDelta
from chimera.mixer.kda import KimiDelta
from chimera.mixer.rwkv7 import RWKV7
from tests.kit import NoLayer, close, ctx, parts, site, uniform
from tests.mixer import forms
from tests.mixer.forms import join, rms, split, unit
from tests.reference.recurrences import delta, low_rank


class TestDelta(forms.Forms):
    mixer = DeltaProduct
    options: ClassVar = [
        {},
        {"order": 2, "negative_eigenvalues": True},
        {"order": 3, "decay": True, "heads": 2},
        {"order": 2, "decay": True, "conv": 4},
    ]

    @staticmethod
    def oracle(m: Any, x: Tensor) -> Tensor:
        """Equations of the module's docstring."""
        h, n = m.heads, m.order
        q, k, v = m.q_proj(x), m.k_proj(x), m.v_proj(x)
        if m.convs:
            q, k, v = (forms.conv(y, w) for y, w in zip((q, k, v), m.convs, strict=True))
        q, k, v = (F.silu(y) for y in (q, k, v))
        k, v = (rearrange(y, "b t (n h k) -> b h t n k", n=n, h=h) for y in (k, v))
        beta = rearrange(m.beta_proj(x).sigmoid(), "b t (n h) -> b h t n 1", h=h)
        decay, width = None, q.shape[-1] // h
        if m.decay_proj is not None:
            dt = torch.log1p((m.decay_proj(x) + m.decay_bias).exp())
            decay = (-m.rate.exp() * dt).mT
        empty = x.new_zeros(len(x), h, width, width)
        y, _ = delta(unit(split(q, h)), unit(k), v, m.max_beta * beta, decay, empty)
        return m.o_proj(join(rms(y) * m.norm.weight))


def test_beta_is_below_two_for_negative_eigenvalues() -> None:
    choices = (TestDelta.build(negative_eigenvalues=choice) for choice in (False, True))
    assert [mixer.max_beta for mixer in choices] == [1, 2]


def test_initial_decay_of_delta_is_mambas() -> None:
    """The step softplus(b) is log-uniform in [0.001, 0.1], the rate exp(a) uniform in [1, 16]."""
    where, chosen = site(dim=20_000, heads=20_000), parts(linear=NoLayer)
    mixer = DeltaProduct(where, chosen, decay=True).double()
    # Initial values are float32.
    uniform(F.softplus(mixer.decay_bias).log10(), -3 - 1e-5, -1 + 1e-5)
    uniform(mixer.rate.exp(), 1 - 1e-5, 16 + 1e-5)


def test_initial_convolutions_of_delta_are_uniform_by_their_taps() -> None:
    mixer = DeltaProduct(site(dim=4000), parts(linear=NoLayer), order=2, conv=4)
    assert [tuple(w.shape) for w in mixer.convs] == [(4000, 4), (8000, 4), (8000, 4)]
    for weight in mixer.convs:
        uniform(weight, -1 / 2, 1 / 2)


class TestGatedDelta(forms.Forms):
    mixer = GatedDelta
    options: ClassVar = [
        {},
        {"heads": 2, "key_heads": 1, "negative_eigenvalues": True, "conv": 0},
        {"heads": 4, "key_heads": 2, "key_expand": 0.5, "value_expand": 1.0, "conv": 2},
    ]
    forgets = ({"conv": 0}, {"decay.A_log": 10.0, "decay.dt_bias": 2.0})

    @staticmethod
    def oracle(m: Any, x: Tensor) -> Tensor:
        """Equations of the module's docstring, eq. 10."""
        mixed = torch.cat([m.q_proj(x), m.k_proj(x), m.v_proj(x)], -1)
        q, k, v = F.silu(forms.conv(mixed, m.conv.weight)).split(m.widths, -1)
        q, k = (
            unit(split(y, m.key_heads)).repeat_interleave(m.heads // m.key_heads, 1) for y in (q, k)
        )
        v, beta = split(v, m.heads), m.max_beta * m.beta_proj(x).sigmoid()
        step = torch.log1p((m.decay_proj(x) + m.decay.dt_bias).exp())
        alpha = torch.exp(-m.decay.A_log.exp() * step)
        empty = x.new_zeros(len(x), m.heads, q.shape[-1], v.shape[-1])
        k, v, beta = k[..., None, :], v[..., None, :], beta.mT[..., None, None]
        y, _ = delta(q / q.shape[-1] ** 0.5, k, v, beta, alpha.mT.log(), empty)
        return m.o_proj(join(rms(y) * m.norm.weight) * F.silu(m.z_proj(x)))


def test_weights_of_gated_delta_are_six_times_the_width_squared() -> None:
    """As the authors count, without gates, convolution and norms."""
    mixer = GatedDelta(site(dim=64), parts())
    names = ("q_proj", "k_proj", "v_proj", "z_proj", "o_proj")
    assert sum(getattr(mixer, name).weight.numel() for name in names) == 6 * 64**2


class TestKDA(forms.Forms):
    mixer = KimiDelta
    options: ClassVar = [
        {},
        {"heads": 2, "head_dim": 5, "negative_eigenvalues": True, "conv": 0, "chunk": 16},
    ]
    forgets = ({"conv": 0}, {"decay.A_log": 10.0, "decay.dt_bias": 2.0})

    @staticmethod
    def oracle(m: Any, x: Tensor) -> Tensor:
        """Equations of the module's docstring: (I − β k kᵀ) diag(α) = diag(α) − β k (k ⊙ α)ᵀ."""
        mixed = torch.cat([m.q_proj(x), m.k_proj(x), m.v_proj(x)], -1)
        q, k, v = (split(y, m.heads) for y in F.silu(forms.conv(mixed, m.conv.weight)).chunk(3, -1))
        q, k, width = unit(q), unit(k), m.head_dim
        logits = m.decay_proj.down(x) @ m.decay_proj.up.T + m.decay.dt_bias
        g = -m.decay.A_log.exp()[:, None, None] * split(torch.log1p(logits.exp()), m.heads)
        beta = m.max_beta * m.beta_proj(x).sigmoid().mT[..., None]
        empty = x.new_zeros(len(x), m.heads, width, width)
        y, _ = low_rank(q / width**0.5, beta * k, v, k * g.exp(), -beta * k, g, empty)
        gate = m.gate_proj.down(x) @ m.gate_proj.up.T
        return m.o_proj(join(rms(y) * m.norm.weight) * gate.sigmoid())


@pytest.mark.parametrize("tokens", [1, 5, 70])
def test_kda_is_the_layer_of_transformers(tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Outputs with copied weights; theirs computes the recurrence in float32.

    Theirs adds 1e-6 to the square of a key's length. Without that, only rounding is left.
    """
    ours = TestKDA.build().float()
    config = KimiLinearConfig(
        hidden_size=32, num_hidden_layers=1, layer_types=["linear_attention"], rms_norm_eps=1e-6,
        linear_num_heads=4, linear_head_dim=8, linear_conv_kernel_dim=4, hidden_act="silu",
    )  # fmt: skip
    theirs = public.KimiLinearDeltaAttention(config, 0).eval()
    with torch.no_grad():
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            getattr(theirs, name).weight.copy_(getattr(ours, name).weight)
        theirs.b_proj.weight.copy_(ours.beta_proj.weight)
        theirs.conv1d.weight.copy_(ours.conv.weight[:, None])
        theirs.forget_gate.f_a_proj.weight.copy_(ours.decay_proj.down.weight)
        theirs.forget_gate.f_b_proj.weight.copy_(ours.decay_proj.up)
        theirs.forget_gate.A_log.copy_(ours.decay.A_log[:, None])
        theirs.forget_gate.dt_bias.copy_(ours.decay.dt_bias)
        theirs.g_a_proj.weight.copy_(ours.gate_proj.down.weight)
        theirs.g_b_proj.weight.copy_(ours.gate_proj.up)
        theirs.o_norm.weight.copy_(ours.norm.weight)
        x = torch.randn(2, tokens, 32)
        got = ours(x, ctx(tokens=tokens)).y
        close(got, theirs(x), 1e-3)
        monkeypatch.setattr(public, "l2norm", lambda x, dim, eps: F.normalize(x, dim=dim, eps=eps))
        close(got, theirs(x), 1e-5)


class TestRWKV7(forms.Forms):
    mixer, where = RWKV7, {"depth": 3, "layer": 1}
    options: ClassVar = [{}, {"heads": 2, "decay_rank": 3, "gate_rank": 5, "chunk": 16}]
    # The bonus is a product of three projections without a norm: 30³ is beyond fp16.
    size = 1

    @staticmethod
    def stir(m: Any) -> None:
        for p in m.parameters():
            p.add_(0.3 * torch.randn_like(p))

    @staticmethod
    def oracle(m: Any, x: Tensor) -> Tensor:
        """Equations of the module's docstring."""
        before = F.pad(x, (0, 0, 1, -1))
        r, d, k, v, a, g = (x + mix * (before - x) for mix in m.mix)
        r, k, v = m.r_proj(r), m.k_proj(k), m.v_proj(v)
        a = (m.rate.down(a) @ m.rate.up.T + m.rate.bias).sigmoid()
        d = m.decay.down(d).tanh() @ m.decay.up.T + m.decay.bias
        w = torch.exp(-math.exp(-0.5) * d.sigmoid())
        erased, written = m.removal * k, k * (1 + (a - 1) * m.replacement)
        r, k, v, a, w, erased, bonus = (
            rearrange(y, "... t (h k) -> ... h t k", h=m.heads)
            for y in (r, written, v, a, w, erased, m.bonus[None])
        )
        erased, n = unit(erased), r.shape[-1]
        empty = x.new_zeros(len(x), m.heads, n, n)
        o, _ = low_rank(r, k, v, -erased, a * erased, w.log(), empty)
        o = o - o.mean(-1, keepdim=True)
        o, own = join(rms(o, 64e-5)), join((r * bonus * k).sum(-1, True) * v)
        g = m.gate.down(g).sigmoid() @ m.gate.up.T
        return m.o_proj(g * (o * m.norm + m.norm_bias + own))


def test_no_decay_of_rwkv7_is_below_the_bound() -> None:
    """exp(−e^(−½)) = 0.545 per token: outputs stay finite and exact with gates at their ends."""
    mixer, x = TestRWKV7.build(), torch.randn(1, 200, 32, dtype=torch.float64)
    mixer.decay.bias.data.fill_(2000.0)
    close(mixer(x, ctx(tokens=200)).y, TestRWKV7.oracle(mixer, x))


@pytest.mark.parametrize(("layer", "power"), [(0, 0.85), (2, 1.85)])
def test_initial_values_of_rwkv7_are_the_authors(layer: int, power: float) -> None:
    """Decay from −6.5 to −1.5 over channels; the first channel takes all of the previous token."""
    mixer = RWKV7(site(depth=3, layer=layer), parts())
    close(mixer.decay.bias.detach(), -6.5 + 5 * (torch.arange(32) / 31) ** power, 1e-5)
    left = 1 - layer / 3
    for number, share in ((0, 0.2), (1, 0.9)):
        want = 1 - (torch.arange(32) / 32) ** (share * left)
        close(mixer.mix[number].detach(), want, 1e-5)
    assert not mixer.decay.up.any()
    assert not mixer.rate.up.any()
    assert mixer.removal.eq(0.85).all()


@pytest.mark.parametrize(("dim", "ranks"), [(768, (64, 128)), (2048, (96, 256)), (32, (32, 32))])
def test_ranks_of_rwkv7_are_those_of_the_published_models(dim: int, ranks: tuple[int, int]) -> None:
    with torch.device("meta"):
        mixer = RWKV7(site(dim=dim), parts())
    assert (mixer.decay.up.shape[1], mixer.gate.up.shape[1]) == ranks
