"""Gated DeltaNet against its equations; Qwen3-Next of transformers: test_from_hf."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor

from chimera.mixer.gated_delta import GatedDelta
from tests.kit import double, parts, site
from tests.mixer import forms
from tests.reference.delta import delta

OPTIONS: list[dict[str, Any]] = [
    {},
    {"heads": 2, "key_heads": 1, "negative_eigenvalues": True, "conv": 0},
    {"heads": 4, "key_heads": 2, "key_expand": 0.5, "value_expand": 1.0, "conv": 2},
]


def build(**options: Any) -> GatedDelta:
    return double(lambda: GatedDelta(site(), parts(), **options))


def by_token(mixer: GatedDelta, x: Tensor) -> Tensor:
    """Equations of the module's docstring, eq. 10."""
    h, groups = mixer.heads, mixer.heads // mixer.key_heads
    mixed = torch.cat([mixer.q_proj(x), mixer.k_proj(x), mixer.v_proj(x)], -1)
    if mixer.conv.weight is not None:
        mixed = forms.conv(mixed, mixer.conv.weight)
    q, k, v = F.silu(mixed).split(mixer.widths, -1)
    q, k = (rearrange(y, "b t (h k) -> b h t k", h=mixer.key_heads) for y in (q, k))
    q, k = ((y / y.norm(dim=-1, keepdim=True)).repeat_interleave(groups, 1) for y in (q, k))
    v = rearrange(v, "b t (h v) -> b h t v", h=h)
    beta = mixer.max_beta * mixer.beta_proj(x).sigmoid()
    step = torch.log1p((mixer.decay_proj(x) + mixer.decay.dt_bias).exp())
    alpha = torch.exp(-mixer.decay.A_log.exp() * step)
    state = x.new_zeros(len(x), h, q.shape[-1], v.shape[-1])
    k, v, beta = k[..., None, :], v[..., None, :], beta.mT[..., None, None]
    y, _ = delta(q / q.shape[-1] ** 0.5, k, v, beta, alpha.mT.log(), state)
    y = rearrange(y, "b h t v -> b t h v")
    y = y / (y.square().mean(-1, keepdim=True) + 1e-6).sqrt() * mixer.norm.weight
    return mixer.o_proj(y.flatten(2) * F.silu(mixer.z_proj(x)))


class TestForms(forms.Forms):
    build, oracle = staticmethod(build), staticmethod(by_token)
    options = OPTIONS
    forgets = ({"conv": 0}, {"decay.A_log": 10.0, "decay.dt_bias": 2.0})


def test_weights_are_six_times_the_width_squared() -> None:
    """As the authors count, without gates, convolution and norms."""
    mixer = GatedDelta(site(dim=64), parts())
    names = ("q_proj", "k_proj", "v_proj", "z_proj", "o_proj")
    assert sum(getattr(mixer, name).weight.numel() for name in names) == 6 * 64**2
