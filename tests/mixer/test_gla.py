"""Gated linear attention against its equations."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from einops import rearrange
from torch import Tensor

from chimera.mixer.gla import GatedLinear
from tests.kit import double, parts, site
from tests.mixer import forms
from tests.reference.channels import decayed

OPTIONS: list[dict[str, Any]] = [
    {},
    {"heads": 2, "key_expand": 1.0, "value_expand": 0.5, "temperature": 1.0, "chunk": 16},
]


def build(**options: Any) -> GatedLinear:
    return double(lambda: GatedLinear(site(), parts(), **options))


def by_token(mixer: GatedLinear, x: Tensor) -> Tensor:
    """Equations of the module's docstring."""
    h = mixer.heads
    logits = mixer.decay.down(x) @ mixer.decay.up.T + mixer.decay.bias
    q, k, v, alpha = (
        rearrange(y, "b t (h k) -> b h t k", h=h)
        for y in (mixer.q_proj(x), mixer.k_proj(x), mixer.v_proj(x), logits.sigmoid())
    )
    alpha = alpha ** (1 / mixer.temperature)
    state = x.new_zeros(len(x), h, k.shape[-1], v.shape[-1])
    y, _ = decayed(q / k.shape[-1] ** 0.5, k, v, alpha.log(), state)
    y = rearrange(y, "b h t v -> b t h v")
    y = y / (y.square().mean(-1, keepdim=True) + 1e-6).sqrt() * mixer.norm.weight
    return mixer.o_proj(y.flatten(2) * F.silu(mixer.r_proj(x)))


class TestForms(forms.Forms):
    build, oracle = staticmethod(build), staticmethod(by_token)
    options = OPTIONS
    forgets = ({"temperature": 1.0}, {"decay.bias": -2000.0})
