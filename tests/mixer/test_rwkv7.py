"""RWKV-7's time mixing against its equations."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor

from chimera.mixer.rwkv7 import RWKV7
from tests.kit import close, ctx, double, parts, site
from tests.mixer import forms
from tests.reference.channels import low_rank

OPTIONS: list[dict[str, Any]] = [{}, {"heads": 2, "decay_rank": 3, "gate_rank": 5, "chunk": 16}]


def build(**options: Any) -> RWKV7:
    mixer = double(lambda: RWKV7(site(depth=3, layer=1), parts(), **options))
    with torch.no_grad():  # initial zeros and ones hide errors
        for p in mixer.parameters():
            p.add_(0.3 * torch.randn_like(p))
    return mixer


def by_token(mixer: RWKV7, x: Tensor) -> Tensor:
    """Equations of the module's docstring."""
    before = F.pad(x, (0, 0, 1, -1))
    r, d, k, v, a, g = (x + mix * (before - x) for mix in mixer.mix)
    r, k, v = mixer.r_proj(r), mixer.k_proj(k), mixer.v_proj(v)
    a = (mixer.rate.down(a) @ mixer.rate.up.T + mixer.rate.bias).sigmoid()
    d = mixer.decay.down(d).tanh() @ mixer.decay.up.T + mixer.decay.bias
    w = torch.exp(-math.exp(-0.5) * d.sigmoid())
    erased, written = mixer.removal * k, k * (1 + (a - 1) * mixer.replacement)
    r, k, v, a, w, erased, bonus = (
        rearrange(y, "... t (h k) -> ... h t k", h=mixer.heads)
        for y in (r, written, v, a, w, erased, mixer.bonus[None])
    )
    erased = erased / erased.norm(dim=-1, keepdim=True)
    n = r.shape[-1]
    state = x.new_zeros(len(x), mixer.heads, n, n)
    o, _ = low_rank(r, k, v, -erased, a * erased, w.log(), state)
    o = (o - o.mean(-1, keepdim=True)) / (o.var(-1, keepdim=True, unbiased=False) + 64e-5).sqrt()
    o, own = (rearrange(y, "b h t k -> b t (h k)") for y in (o, (r * bonus * k).sum(-1, True) * v))
    g = mixer.gate.down(g).sigmoid() @ mixer.gate.up.T
    return mixer.o_proj(g * (o * mixer.norm + mixer.norm_bias + own))


class TestForms(forms.Forms):
    build, oracle = staticmethod(build), staticmethod(by_token)
    options = OPTIONS
    # The bonus is a product of three projections without a norm: 30³ is beyond fp16.
    size = 1


def test_no_decay_is_below_the_bound() -> None:
    """exp(−e^(−½)) = 0.545 per token: outputs stay finite and exact with gates at their ends."""
    mixer, x = build(), torch.randn(1, 200, 32, dtype=torch.float64)
    with torch.no_grad():
        assert mixer.decay.bias is not None
        mixer.decay.bias.fill_(2000.0)
    close(mixer(x, ctx(tokens=200)).y, by_token(mixer, x))


@pytest.mark.parametrize(("layer", "power"), [(0, 0.85), (2, 1.85)])
def test_initial_values_are_the_authors(layer: int, power: float) -> None:
    """Decay from −6.5 to −1.5 over channels; the first channel takes all of the previous token."""
    mixer = RWKV7(site(depth=3, layer=layer), parts())
    channel = torch.arange(32) / 31
    assert mixer.decay.bias is not None
    close(mixer.decay.bias.detach(), -6.5 + 5 * channel**power, 1e-5)
    left = 1 - layer / 3
    close(mixer.mix[0].detach(), 1 - (torch.arange(32) / 32) ** (0.2 * left), 1e-5)
    close(mixer.mix[1].detach(), 1 - (torch.arange(32) / 32) ** (0.9 * left), 1e-5)
    assert not mixer.decay.up.any()
    assert not mixer.rate.up.any()
    assert mixer.removal.eq(0.85).all()


@pytest.mark.parametrize(("dim", "ranks"), [(768, (64, 128)), (2048, (96, 256)), (32, (32, 32))])
def test_ranks_are_those_of_the_published_models(dim: int, ranks: tuple[int, int]) -> None:
    with torch.device("meta"):
        mixer = RWKV7(site(dim=dim), parts())
    assert (mixer.decay.up.shape[1], mixer.gate.up.shape[1]) == ranks
