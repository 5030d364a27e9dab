"""Mamba-2 against its equations; that of transformers: test_from_hf."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor

from chimera.mixer.mamba2 import Mamba2
from tests.kit import NoLayer, double, parts, site, uniform
from tests.mixer import forms
from tests.reference.ssd import ssd

OPTIONS: list[dict[str, Any]] = [
    {"state": 7},
    {"state": 5, "head_dim": 8, "groups": 2, "chunk": 16},
    {"state": 16, "expand": 1, "head_dim": 4, "conv": 1},
]


def build(**options: Any) -> Mamba2:
    return double(lambda: Mamba2(site(), parts(), **options))


def inputs(mixer: Any, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """z, u [b t h p], B and C [b t g n], Δ [b t h]."""
    z, mixed = mixer.in_proj(x).split((mixer.inner, sum(mixer.widths)), -1)
    mixed = F.silu(forms.conv(mixed, mixer.conv.weight, mixer.conv.bias))
    u, b, c = mixed.split(mixer.widths, -1)
    u = rearrange(u, "b t (h p) -> b t h p", h=mixer.heads)
    b, c = (rearrange(y, "b t (g n) -> b t g n", g=mixer.groups) for y in (b, c))
    return z, u, b, c, torch.log1p((mixer.dt_proj(x) + mixer.decay.dt_bias).exp())


def output(mixer: Any, s: Tensor, z: Tensor) -> Tensor:
    """Gate, norm over groups and projection of s [b t h p]."""
    y = (s.flatten(2) * F.silu(z)).unflatten(-1, (mixer.groups, -1))
    y = (y / (y.square().mean(-1, keepdim=True) + 1e-5).sqrt()).flatten(2)
    return mixer.out_proj(y * mixer.norm)


def by_token(mixer: Mamba2, x: Tensor) -> Tensor:
    """Equations of the module's docstring."""
    z, u, b, c, delta = inputs(mixer, x)
    h = x.new_zeros(len(x), mixer.heads, mixer.state, mixer.head_dim)
    s, _ = ssd(u, delta, -mixer.decay.A_log.exp(), b, c, h)
    return output(mixer, s + mixer.D[:, None] * u, z)


class TestForms(forms.Forms):
    build, oracle = staticmethod(build), staticmethod(by_token)
    options = OPTIONS
    forgets = ({"conv": 1}, {"decay.A_log": 10.0, "decay.dt_bias": 2.0})


def test_initial_decay_is_the_authors() -> None:
    """softplus(dt_bias) is log-uniform in [0.001, 0.1], exp(A_log) uniform in [1, 16]."""
    mixer = Mamba2(site(dim=20_000), parts(linear=NoLayer), head_dim=1, state=1).double()
    # Initial values are float32.
    uniform(F.softplus(mixer.decay.dt_bias).log10(), -3 - 1e-4, -1 + 1e-4)
    uniform(mixer.decay.A_log.exp(), 1 - 1e-5, 16 + 1e-5)
