"""HGRN2 against its equations."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor

from chimera.mixer.hgrn2 import HGRN2
from tests.kit import close, ctx, double, parts, site
from tests.mixer import forms
from tests.reference.channels import decayed

#: The first has the lower bound (1 + 3·loop)/(3·2) of layer 1 of 3, two loops.
OPTIONS: list[dict[str, Any]] = [{}, {"heads": 2, "lower_bound": False, "chunk": 16}]


def build(**options: Any) -> HGRN2:
    where = site(depth=3, layer=1, loops=2)
    return double(lambda: HGRN2(where, parts(), **options))


def by_token(mixer: HGRN2, x: Tensor, loop: int = 0) -> Tensor:
    """Equations of the module's docstring."""
    h, low = mixer.heads, (1 + 3 * loop) / 6 if mixer.lower_bound else 0.0
    q, f, i = (
        rearrange(y, "b t (h k) -> b h t k", h=h)
        for y in (F.silu(mixer.q_proj(x)), mixer.f_proj(x).sigmoid(), mixer.i_proj(x))
    )
    f, k = low + (1 - low) * f, q.shape[-1]
    y, _ = decayed(q / k**0.5, 1 - f, i, f.log(), x.new_zeros(len(x), h, k, k))
    y = rearrange(y, "b h t v -> b t (h v)")
    return mixer.o_proj(y / (y.square().mean(-1, keepdim=True) + 1e-6).sqrt() * mixer.norm)


class TestForms(forms.Forms):
    build, oracle = staticmethod(build), staticmethod(by_token)
    options = OPTIONS


def test_the_bound_grows_with_the_logical_layer() -> None:
    mixer, x = build(), torch.randn(1, 9, 32, dtype=torch.float64)
    close(mixer(x, ctx(tokens=9, loop=1)).y, by_token(mixer, x, loop=1))


def test_extreme_gates_stay_finite() -> None:
    """σ is 0 and 1 to the last bit at ±2000: without a bound log f is −2000, not −∞."""
    mixer, x = build(lower_bound=False), torch.randn(1, 130, 32, dtype=torch.float64)
    with torch.no_grad():
        mixer.f_proj.weight.mul_(2000)
    y = mixer(x, ctx(tokens=130)).y
    assert y.isfinite().all()
    y.square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in mixer.parameters())
