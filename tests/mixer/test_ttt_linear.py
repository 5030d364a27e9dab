"""TTT-Linear against its equations."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from einops import rearrange
from torch import Tensor

from chimera.mixer.ttt_linear import TTTLinear
from chimera.position.rope import Rotary
from tests.kit import close, ctx, double, parts, site
from tests.mixer import forms
from tests.reference.ttt import ttt

OPTIONS = [{"heads": 2, "mini_batch": 5, "rate": 0.5}, pytest.param({}, marks=pytest.mark.slow)]


def build(**options: Any) -> TTTLinear:
    mixer = double(lambda: TTTLinear(site(), parts(), **options))
    with torch.no_grad():
        for p in (mixer.inner, mixer.scale, mixer.shift, mixer.rate_bias):
            p.add_(0.3 * torch.randn_like(p))
        mixer.places.add_(0.1 * torch.rand_like(mixer.places))
    return mixer


def by_token(mixer: TTTLinear, x: Tensor) -> Tensor:
    """Equations of the module's docstring."""
    h, m = mixer.heads, len(mixer.places)
    q, k, v = (
        rearrange(y, "b t (h k) -> b h t k", h=h)
        for y in (mixer.q_proj(x), mixer.k_proj(x), mixer.v_proj(x))
    )
    eta = (mixer.rate_proj(x) + mixer.rate_bias).sigmoid().mT * mixer.rate
    places = (1 / torch.arange(1, m + 1) + mixer.places).relu()
    z, _ = ttt(q, k, v, eta, mixer.inner, mixer.scale, mixer.shift, places)
    return mixer.o_proj(mixer.norm(rearrange(z, "b h t k -> b t (h k)")))


class TestForms(forms.Forms):
    build, oracle = staticmethod(build), staticmethod(by_token)
    options = OPTIONS


def test_queries_and_keys_turn_within_a_mini_batch() -> None:
    """Rotations start anew with each mini-batch: it does not matter how many came before."""
    mixer = double(lambda: TTTLinear(site(), parts(position=Rotary), mini_batch=4))
    x = torch.randn(1, 4, 32, dtype=torch.float64)
    close(mixer(x, ctx(tokens=4)).y, mixer(x, ctx(tokens=4, start=8)).y)
    assert not torch.allclose(mixer(x, ctx(tokens=4)).y, mixer(x, ctx(tokens=4, start=1)).y)
