"""Linear attention, retention, gated linear attention against their definitions (SPEC M5, M6)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from chimera.mixer.gla import GatedLinear
from chimera.mixer.hgrn2 import HGRN2
from chimera.mixer.linear import LinearAttention
from chimera.mixer.retnet import Retention
from chimera.position.hope import Hope
from chimera.position.rope import Rotary
from tests.kit import close, ctx, parts, site
from tests.mixer import forms
from tests.mixer.forms import join, rms, split
from tests.reference.recurrences import decayed


class TestLinear(forms.Forms):
    mixer = LinearAttention
    options: ClassVar = [
        {"form": "parallel"},
        {"chunk_size": 5},
        {"chunk_size": 24, "position": Rotary},
        {"position": Hope},
    ]
    encoders, tol = True, 1e-9

    @staticmethod
    def oracle(m: Any, x: Tensor) -> Tensor:
        """A weighted mean; positions turn the numerator only (RoFormer eq. 19)."""
        q, k = (F.elu(split(p(x), 4)) + 1 for p in (m.q_proj, m.k_proj))
        pos = torch.arange(x.shape[1])[None]
        turned, keys = m.position.rotate(q, k, pos)
        above = turned @ keys.mT
        if "rotate" in m.position.provides:
            q, k = m.position.rotate(q, k, 0 * pos)
        below = q @ k.mT
        if m.causal:
            above, below = above.tril(), below.tril()
        return m.o_proj(join(above @ split(m.v_proj(x), 4) / below.sum(-1, keepdim=True)))


RATES = {
    "titan": torch.tensor([1 - 2 ** -(5 + 7 * h / 4) for h in range(4)], dtype=torch.float64),
    "retnet": torch.tensor([1 - 2 ** -(5 + h) for h in range(4)], dtype=torch.float64),
}


def turned(x: Tensor, pos: Tensor) -> Tensor:
    """RetNet's rotation, pair by pair, as complex numbers."""
    theta = 10000.0 ** -torch.linspace(0, 1, x.shape[-1] // 2, dtype=x.dtype)
    z = torch.complex(x[..., 0::2], x[..., 1::2]) * torch.exp(1j * pos[:, None] * theta)
    return torch.stack((z.real, z.imag), -1).flatten(-2)


class TestRetention(forms.Forms):
    mixer, given = Retention, {"heads": 4}
    options: ClassVar = [
        {"form": "parallel"},
        {"decay": "retnet", "value_expand": 2, "chunk_size": 24},
        {"form": "chunkwise", "chunk_size": 5},
        {"position": Rotary, "chunk_size": 4},
        {"position": Hope, "chunk_size": 4},
    ]
    encoders, tol = True, 1e-9

    @staticmethod
    def oracle(m: Any, x: Tensor, *, paper: bool = False, eps: float = 1e-6) -> Tensor:
        """Matrix D and formulas of the docstring; `paper` adds RetNet's score normalisations."""
        pos = torch.arange(x.shape[1])
        q, k, v = (split(p(x), 4) for p in (m.q_proj, m.k_proj, m.v_proj))
        apart = pos[:, None] - pos
        d = RATES[m.rule][:, None, None] ** apart.abs()
        d = d * (apart >= 0) if m.site.causal else d
        if paper:
            d = d / d.sum(-1, keepdim=True).sqrt()
        if "rotate" in m.position.provides:  # which takes the place of the own rotation
            q, k = m.position.rotate(q, k, pos[None])
        else:
            q, k = turned(q, pos), turned(k, pos)
        scores = q @ k.mT / k.shape[-1] ** 0.5 * d
        if paper:
            scores = scores / scores.sum(-1, keepdim=True).abs().clamp(min=1)
        return m.o_proj(join(rms(scores @ v, eps)) * F.silu(m.g_proj(x)))


def test_the_norm_over_each_head_of_retention_adds_one_millionth() -> None:
    m = TestRetention.build()
    m.v_proj.weight.data.mul_(1e-3)  # heads whose mean square is close to ε
    x = torch.randn(1, 9, 32).double()
    want = TestRetention.oracle(m, x)
    close(m(x, ctx(tokens=9)).y, want)
    assert (want - TestRetention.oracle(m, x, eps=2e-6)).abs().max() > 0.01


def test_retnets_score_normalisations_are_taken_away_by_the_norm() -> None:
    m = TestRetention.build(eps=1e-30)
    x = torch.randn(1, 9, 32).double()
    close(m(x, ctx(tokens=9)).y, TestRetention.oracle(m, x, paper=True, eps=1e-30))


def test_decay_may_vary_with_the_logical_layer() -> None:
    def exponent(layer: int, loop: int) -> Tensor:
        where = site(depth=3, loops=2, layer=layer)
        m = Retention(where, parts(), heads=4, depth_shift=2.0).double()
        return -torch.log2(1 - m.log_decay(loop, torch.empty(0).double()).exp())

    first = 5 + 7 * torch.arange(4).double() / 4
    close(exponent(0, 0), first)
    close(exponent(1, 1), first + 2.0 * 4 / 5)  # logical layer 4 of 0 … 5
    close(exponent(2, 1), first + 2.0)


def test_layers_share_rates_and_angles_without_a_change_of_numbers() -> None:
    """One `Context` serves a whole model: layers take from it only what is equal for them."""
    options: list[dict[str, Any]] = [
        {}, {"decay": "retnet"}, {"heads": 4}, {"depth_shift": 1.0}, {"depth_shift": 2.0},
    ]  # fmt: skip
    layers = [
        Retention(site(depth=3, layer=layer, loops=2), parts(), **each).double()
        for each in options
        for layer in (0, 2)
    ]
    x, mask = torch.randn(2, 7, 32).double(), torch.tensor([[True] * 7, [True] * 5 + [False] * 2])
    for here in (None, mask):
        first = ctx(here, tokens=7)
        shared = [first, replace(first, loop=1)]
        for m in (*layers, *layers):
            for each in shared:
                assert torch.equal(m(x, each).y, m(x, replace(each, memo={})).y)
        assert len(first.memo) == 2 + 3 + 8  # two widths of heads, rates without and with depth
    both = ctx(tokens=7)
    layers[0](x, both)
    layers[0].float()(x.float(), both)  # another dtype takes nothing from it
    assert len(both.memo) == 4


class TestGatedLinear(forms.Forms):
    mixer = GatedLinear
    options: ClassVar = [
        {},
        {"heads": 2, "key_expand": 1.0, "value_expand": 0.5, "temperature": 1.0, "chunk": 16},
    ]
    forgets = ({"temperature": 1.0}, {"decay.bias": -2000.0})

    @staticmethod
    def oracle(m: Any, x: Tensor) -> Tensor:
        """Equations of the module's docstring."""
        logits = m.decay.down(x) @ m.decay.up.T + m.decay.bias
        q, k, v, alpha = (
            split(y, m.heads) for y in (m.q_proj(x), m.k_proj(x), m.v_proj(x), logits.sigmoid())
        )
        alpha = alpha ** (1 / m.temperature)
        state = x.new_zeros(len(x), m.heads, k.shape[-1], v.shape[-1])
        y, _ = decayed(q / k.shape[-1] ** 0.5, k, v, alpha.log(), state)
        y = join(rms(y)) * m.norm.weight.repeat(m.heads)
        return m.o_proj(y * F.silu(m.r_proj(x)))


class TestHGRN2(forms.Forms):
    """The first has the lower bound (1 + 3·loop)/(3·2) of layer 1 of 3, two loops."""

    mixer, where = HGRN2, {"depth": 3, "layer": 1, "loops": 2}
    options: ClassVar = [{}, {"heads": 2, "lower_bound": False, "chunk": 16}]

    @staticmethod
    def oracle(m: Any, x: Tensor, loop: int = 0) -> Tensor:
        """Equations of the module's docstring."""
        low = (1 + 3 * loop) / 6 if m.lower_bound else 0.0
        q, f, i = (
            split(y, m.heads) for y in (F.silu(m.q_proj(x)), m.f_proj(x).sigmoid(), m.i_proj(x))
        )
        f, k = low + (1 - low) * f, q.shape[-1]
        y, _ = decayed(q / k**0.5, 1 - f, i, f.log(), x.new_zeros(len(x), m.heads, k, k))
        return m.o_proj(rms(join(y)) * m.norm)


def test_the_bound_of_hgrn2_grows_with_the_logical_layer() -> None:
    mixer, x = TestHGRN2.build(), torch.randn(1, 9, 32, dtype=torch.float64)
    close(mixer(x, ctx(tokens=9, loop=1)).y, TestHGRN2.oracle(mixer, x, loop=1))


def test_extreme_gates_of_hgrn2_stay_finite() -> None:
    """σ is 0 and 1 to the last bit at ±2000: without a bound log f is −2000, not −∞."""
    mixer, x = TestHGRN2.build(lower_bound=False), torch.randn(1, 130, 32, dtype=torch.float64)
    mixer.f_proj.weight.data.mul_(2000)
    y = mixer(x, ctx(tokens=130)).y
    assert y.isfinite().all()
    y.square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in mixer.parameters())
