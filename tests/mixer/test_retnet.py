"""Retention against its definition, in all three forms (SPEC M6)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from chimera.mixer.retnet import Retention
from chimera.position.hope import Hope
from chimera.position.rope import Rotary
from tests.kit import close, ctx, double, parts, site
from tests.mixer import forms


def build(causal: bool = True, position: Any = None, where: Any = None, **options: Any) -> Any:
    chosen = parts() if position is None else parts(position=position)
    here = where or site(causal=causal)
    return double(lambda: Retention(here, chosen, **{"heads": here.heads, **options}))


def heads(x: Tensor, h: int = 4) -> Tensor:
    return x.unflatten(-1, (h, -1)).transpose(1, 2)


def turned(x: Tensor, pos: Tensor) -> Tensor:
    """RetNet's rotation, pair by pair, as complex numbers."""
    theta = 10000.0 ** -torch.linspace(0, 1, x.shape[-1] // 2, dtype=x.dtype)
    z = torch.complex(x[..., 0::2], x[..., 1::2]) * torch.exp(1j * pos[:, None] * theta)
    return torch.stack((z.real, z.imag), -1).flatten(-2)


def definition(m: Any, x: Tensor, *, paper: bool = False, eps: float = 1e-6) -> Tensor:
    """Matrix D and formulas of the docstring; `paper` adds RetNet's score normalisations."""
    gamma, causal = RATES[m.rule], m.site.causal
    pos = torch.arange(x.shape[1])
    q, k, v = heads(m.q_proj(x)), heads(m.k_proj(x)), heads(m.v_proj(x))
    apart = pos[:, None] - pos
    d = gamma[:, None, None] ** apart.abs()
    d = d * (apart >= 0) if causal else d
    if paper:
        d = d / d.sum(-1, keepdim=True).sqrt()
    if "rotate" in m.position.provides:  # which takes the place of the own rotation
        q, k = m.position.rotate(q, k, pos[None])
    else:
        q, k = turned(q, pos), turned(k, pos)
    scores = q @ k.mT / k.shape[-1] ** 0.5 * d
    if paper:
        scores = scores / scores.sum(-1, keepdim=True).abs().clamp(min=1)
    o = scores @ v
    o = o / (o.square().mean(-1, keepdim=True) + eps).sqrt()
    return m.o_proj(o.transpose(1, 2).flatten(2) * F.silu(m.g_proj(x)))


TITAN = torch.tensor([1 - 2 ** -(5 + 7 * h / 4) for h in range(4)], dtype=torch.float64)
RETNET = torch.tensor([1 - 2 ** -(5 + h) for h in range(4)], dtype=torch.float64)
RATES = {"titan": TITAN, "retnet": RETNET}


class TestForms(forms.Forms):
    build, oracle = staticmethod(build), staticmethod(definition)
    options: ClassVar = [
        {"form": "parallel"},
        {"decay": "retnet", "value_expand": 2, "chunk_size": 24},
        {"form": "chunkwise", "chunk_size": 5},
        {"position": Rotary, "chunk_size": 4},
        {"position": Hope, "chunk_size": 4},
    ]
    encoders = True
    tol = 1e-9


def test_the_norm_over_each_head_adds_one_millionth() -> None:
    m = build()
    m.v_proj.weight.data.mul_(1e-3)  # heads whose mean square is close to ε
    x = torch.randn(1, 9, 32).double()
    want = definition(m, x)
    close(m(x, ctx(tokens=9)).y, want)
    assert (want - definition(m, x, eps=2e-6)).abs().max() > 0.01


def test_the_papers_score_normalisations_are_taken_away_by_the_norm() -> None:
    m = build(eps=1e-30)
    x = torch.randn(1, 9, 32).double()
    close(m(x, ctx(tokens=9)).y, definition(m, x, paper=True, eps=1e-30))


def test_decay_may_vary_with_the_logical_layer() -> None:
    def exponent(layer: int, loop: int) -> Tensor:
        m = build(where=site(depth=3, loops=2, layer=layer), depth_shift=2.0)
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
