"""Mamba-2 against its equations and against transformers' layer with copied weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor
from transformers.models.mamba2.configuration_mamba2 import Mamba2Config
from transformers.models.mamba2.modeling_mamba2 import Mamba2Mixer

from chimera.mixer.mamba2 import Mamba2
from tests.kit import NoLayer, close, ctx, double, parts, site, uniform
from tests.mixer import forms
from tests.reference.ssd import ssd

OPTIONS: list[dict[str, Any]] = [
    {"state": 7},
    {"state": 5, "head_dim": 8, "groups": 2, "chunk": 16},
    {"state": 16, "expand": 1, "head_dim": 4, "conv": 1},
]


def build(**options: Any) -> Mamba2:
    mixer = double(lambda: Mamba2(site(), parts(), **options))
    assert isinstance(mixer, Mamba2)
    return mixer


def by_token(mixer: Mamba2, x: Tensor) -> Tensor:
    """Equations of the module's docstring."""
    z, mixed = mixer.in_proj(x).split((mixer.inner, sum(mixer.widths)), -1)
    mixed = F.silu(forms.conv(mixed, mixer.conv.weight, mixer.conv.bias))
    u, b, c = mixed.split(mixer.widths, -1)
    u = rearrange(u, "b t (h p) -> b t h p", h=mixer.heads)
    b, c = (rearrange(y, "b t (g n) -> b t g n", g=mixer.groups) for y in (b, c))
    delta = torch.log1p((mixer.dt_proj(x) + mixer.decay.dt_bias).exp())
    h = x.new_zeros(len(x), mixer.heads, mixer.state, mixer.head_dim)
    s, _ = ssd(u, delta, -mixer.decay.A_log.exp(), b, c, h)
    y = (s + mixer.D[:, None] * u).flatten(2) * F.silu(z)
    y = y.unflatten(-1, (mixer.groups, -1))
    y = (y / (y.square().mean(-1, keepdim=True) + 1e-5).sqrt()).flatten(2)
    return mixer.out_proj(y * mixer.norm)


class TestForms(forms.Forms):
    build, oracle = staticmethod(build), staticmethod(by_token)
    options = OPTIONS
    forgets = ({"conv": 1}, {"decay.A_log": 10.0, "decay.dt_bias": 2.0})


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("tokens", [1, 5, 70])
def test_is_the_layer_of_transformers(tokens: int, groups: int) -> None:
    """Outputs with copied weights; theirs computes the recurrence in float32."""
    ours = build(state=6, head_dim=8, groups=groups).float()
    config = Mamba2Config(
        hidden_size=32, num_hidden_layers=1, num_heads=8, head_dim=8, state_size=6, expand=2,
        n_groups=groups, conv_kernel=4, chunk_size=16, layer_norm_epsilon=1e-5,
    )  # fmt: skip
    theirs = Mamba2Mixer(config, 0).eval()
    with torch.no_grad():
        theirs.in_proj.weight.copy_(torch.cat([ours.in_proj.weight, ours.dt_proj.weight]))
        theirs.conv1d.weight.copy_(ours.conv.weight[:, None])
        theirs.conv1d.bias.copy_(ours.conv.bias)
        theirs.A_log.copy_(ours.decay.A_log)
        theirs.dt_bias.copy_(ours.decay.dt_bias)
        theirs.D.copy_(ours.D.normal_())
        theirs.norm.weight.copy_(ours.norm.normal_())
        theirs.out_proj.weight.copy_(ours.out_proj.weight)
        x = torch.randn(2, tokens, 32)
        close(ours(x, ctx(tokens=tokens)).y, theirs(x), 2e-5)


def test_initial_decay_is_the_authors() -> None:
    """softplus(dt_bias) is log-uniform in [0.001, 0.1], exp(A_log) uniform in [1, 16]."""
    mixer = Mamba2(site(dim=20_000), parts(linear=NoLayer), head_dim=1, state=1).double()
    # Initial values are float32.
    uniform(F.softplus(mixer.decay.dt_bias).log10(), -3 - 1e-4, -1 + 1e-4)
    uniform(mixer.decay.A_log.exp(), 1 - 1e-5, 16 + 1e-5)
