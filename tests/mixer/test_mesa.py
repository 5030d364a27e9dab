"""MesaNet's layer against its equations."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor

from chimera.mixer.mesa import Mesa
from tests.kit import close, double, parts, site
from tests.mixer import forms
from tests.reference.mesa import mesa

OPTIONS = [
    {"heads": 2, "conv": 0, "ridge": 0.1, "chunk": 16},
    pytest.param({}, marks=pytest.mark.slow),
]


def build(**options: Any) -> Mesa:
    mixer = double(lambda: Mesa(site(), parts(), **{"tolerance": 0.0, "steps": 50, **options}))
    with torch.no_grad():
        mixer.decay_bias.normal_(3)
        mixer.beta_bias.normal_()
        mixer.ridge.normal_()
    return mixer


def by_token(mixer: Mesa, x: Tensor) -> Tensor:
    """Equations of the module's docstring."""
    h = mixer.heads
    mixed = torch.cat([mixer.q_proj(x), mixer.k_proj(x)], -1)
    if mixer.conv.weight is not None:
        mixed = forms.conv(mixed, mixer.conv.weight)
    q, k = (rearrange(y, "b t (h k) -> b h t k", h=h) for y in F.silu(mixed).chunk(2, -1))
    q, k = (y / y.norm(dim=-1, keepdim=True) for y in (q, k))
    v = rearrange(mixer.v_proj(x), "b t (h k) -> b h t k", h=h)
    beta = (mixer.beta_proj(x) + mixer.beta_bias).sigmoid().mT
    gamma = (mixer.decay_proj(x) + mixer.decay_bias).sigmoid().mT
    ridge = mixer.lowest + torch.log1p(mixer.ridge.exp())
    width = k.shape[-1]
    y, _ = mesa(q, k, v, beta, gamma.log(), ridge, x.new_zeros(len(x), h, width, 2 * width))
    y = y / (y.square().mean(-1, keepdim=True) + 1e-5).sqrt() * mixer.norm
    return mixer.o_proj(rearrange(y, "b h t k -> b t (h k)"))


class TestForms(forms.Forms):
    build, oracle = staticmethod(build), staticmethod(by_token)
    options = OPTIONS


def test_the_ridge_starts_at_one() -> None:
    mixer = Mesa(site(), parts(), ridge=0.4)
    close(mixer.lowest + F.softplus(mixer.ridge), torch.ones(4, 8), 1e-6)
