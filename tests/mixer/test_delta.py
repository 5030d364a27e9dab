"""DeltaNet and DeltaProduct against the recurrence with the weights of the mixer."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor

from chimera.mixer.delta import DeltaProduct
from tests.kit import NoLayer, double, parts, site, uniform
from tests.mixer import forms
from tests.reference.delta import delta as naive

OPTIONS: list[dict[str, Any]] = [
    {},
    {"order": 2, "negative_eigenvalues": True},
    {"order": 3, "decay": True, "heads": 2},
    {"order": 2, "decay": True, "conv": 4},
]


def build(**options: Any) -> DeltaProduct:
    return double(lambda: DeltaProduct(site(), parts(), **options))


def by_token(mixer: DeltaProduct, x: Tensor) -> Tensor:
    """Equations of the module's docstring."""
    h, n = mixer.heads, mixer.order
    q, k, v = mixer.q_proj(x), mixer.k_proj(x), mixer.v_proj(x)
    if mixer.convs:
        q, k, v = (forms.conv(y, w) for y, w in zip((q, k, v), mixer.convs, strict=True))
    q, k, v = (F.silu(y) for y in (q, k, v))
    q = rearrange(q, "b t (h k) -> b h t k", h=h)
    k, v = (rearrange(y, "b t (n h k) -> b h t n k", n=n, h=h) for y in (k, v))
    q, k = (y / y.norm(dim=-1, keepdim=True) for y in (q, k))
    beta = rearrange(mixer.beta_proj(x).sigmoid(), "b t (n h) -> b h t n 1", h=h)
    decay = None
    if mixer.decay_proj is not None:
        dt = torch.log1p((mixer.decay_proj(x) + mixer.decay_bias).exp())
        decay = (-mixer.rate.exp() * dt).mT
    beta = mixer.max_beta * beta
    y, _ = naive(q, k, v, beta, decay, torch.zeros(len(x), h, q.shape[-1], q.shape[-1]).to(x))
    y = y / (y.square().mean(-1, keepdim=True) + 1e-6).sqrt() * mixer.norm.weight
    return mixer.o_proj(rearrange(y, "b h t k -> b t (h k)"))


class TestForms(forms.Forms):
    build, oracle = staticmethod(build), staticmethod(by_token)
    options = OPTIONS


def test_beta_is_below_two_for_negative_eigenvalues() -> None:
    assert [build(negative_eigenvalues=choice).max_beta for choice in (False, True)] == [1, 2]


def test_initial_decay_is_mambas() -> None:
    """The step softplus(b) is log-uniform in [0.001, 0.1], the rate exp(a) uniform in [1, 16]."""
    heads = 20_000
    where, chosen = site(dim=heads, heads=heads), parts(linear=NoLayer)
    mixer = DeltaProduct(where, chosen, decay=True).double()
    uniform(
        F.softplus(mixer.decay_bias).log10(), -3 - 1e-5, -1 + 1e-5
    )  # initial values are float32
    uniform(mixer.rate.exp(), 1 - 1e-5, 16 + 1e-5)


def test_initial_convolutions_are_uniform_by_their_taps() -> None:
    mixer = DeltaProduct(site(dim=4000), parts(linear=NoLayer), order=2, conv=4)
    assert [tuple(w.shape) for w in mixer.convs] == [(4000, 4), (8000, 4), (8000, 4)]
    for weight in mixer.convs:
        uniform(weight, -1 / 2, 1 / 2)
