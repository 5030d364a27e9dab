"""Mamba against a public implementation, Mamba-2 and its log-linear kind against their equations.

Mamba-2 of transformers: test_from_hf.
"""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
import torch
import torch.nn.functional as F
from einops import rearrange
from mambapy.mamba import MambaBlock, MambaConfig
from torch import Tensor

from chimera.mixer.log_linear import LogLinear
from chimera.mixer.mamba import Mamba
from chimera.mixer.mamba2 import Mamba2
from chimera.mixer.shared.ssm import SelectiveSSM
from tests.kit import NoLayer, close, ctx, grads, parts, site, uniform
from tests.mixer import forms
from tests.mixer.forms import rms
from tests.reference.recurrences import ssd

#: mambapy's names of Chimera's parameters.
PUBLIC = {
    "ssm.in_proj.weight": "in_proj.weight",
    "ssm.conv_weight": "conv1d.weight",
    "ssm.conv_bias": "conv1d.bias",
    "ssm.x_proj.weight": "x_proj.weight",
    "ssm.dt_weight": "dt_proj.weight",
    "ssm.dt_bias": "dt_proj.bias",
    "ssm.A_log": "A_log",
    "ssm.D": "D",
    "out_proj.weight": "out_proj.weight",
}


class TestMamba(forms.Pieces):
    mixer = Mamba
    wide, size = False, 1.0


def test_mamba_is_the_public_block() -> None:
    """Values and all gradients. mambapy computes A in float32, which sets the tolerance."""
    ours = TestMamba.build(state=8, expand=3, conv=3, dt_rank=5)
    config = MambaConfig(
        d_model=32, n_layers=1, d_state=8, expand_factor=3, d_conv=3, dt_rank=5, pscan=False
    )
    theirs = MambaBlock(config).double()
    shapes, own = theirs.state_dict(), ours.state_dict()
    theirs.load_state_dict({PUBLIC[n]: own[n].view_as(shapes[PUBLIC[n]]) for n in own})
    x = torch.randn(2, 65, 32, dtype=torch.float64, requires_grad=True)
    a, b = ours(x, ctx(tokens=65)).y, theirs(x)
    close(a, b, 1e-7)
    weight, public = torch.randn_like(a), dict(theirs.named_parameters())
    got = grads((a * weight).sum(), [x, *ours.parameters()])
    names = [PUBLIC[name] for name, _ in ours.named_parameters()]
    want = grads((b * weight).sum(), [x, *(public[name] for name in names)])
    close(got, [y.view_as(z) for y, z in zip(want, got, strict=True)], 1e-6)


def test_initial_values_of_mamba_are_those_of_the_paper() -> None:
    ssm = TestMamba.build().ssm
    close(ssm.A_log.exp(), torch.arange(1.0, 17).double().expand(64, 16), 1e-6)
    close(ssm.D, torch.ones(64).double(), 0)
    assert ssm.dt_weight.shape == (64, 2)
    assert ssm.sizes == (2, 16, 16)
    wide = SelectiveSSM(4096, NoLayer, state=2, expand=2, conv=9, dt_rank=16)
    dt = F.softplus(wide.dt_bias.double())
    uniform(dt.log10(), -3 - 1e-5, -1 + 1e-5)  # log-uniform in [0.001, 0.1], in float32
    uniform(wide.dt_weight, -1 / 4, 1 / 4)
    uniform(wide.conv_weight, -1 / 3 - 1e-6, 1 / 3 + 1e-6)
    uniform(wide.conv_bias, -1 / 3 - 1e-6, 1 / 3 + 1e-6)


def inputs(m: Any, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """z, u [b t h p], B and C [b t g n], Δ [b t h]."""
    z, mixed = m.in_proj(x).split((m.inner, sum(m.widths)), -1)
    u, b, c = F.silu(forms.conv(mixed, m.conv.weight, m.conv.bias)).split(m.widths, -1)
    u = rearrange(u, "b t (h p) -> b t h p", h=m.heads)
    b, c = (rearrange(y, "b t (g n) -> b t g n", g=m.groups) for y in (b, c))
    return z, u, b, c, torch.log1p((m.dt_proj(x) + m.decay.dt_bias).exp())


def output(m: Any, s: Tensor, z: Tensor) -> Tensor:
    """Gate, norm over groups and projection of s [b t h p]."""
    y = (s.flatten(2) * F.silu(z)).unflatten(-1, (m.groups, -1))
    return m.out_proj(rms(y, 1e-5).flatten(2) * m.norm)


class TestMamba2(forms.Forms):
    mixer = Mamba2
    options: ClassVar = [
        {"state": 7},
        {"state": 5, "head_dim": 8, "groups": 2, "chunk": 16},
        {"state": 16, "expand": 1, "head_dim": 4, "conv": 1},
    ]
    forgets = ({"conv": 1}, {"decay.A_log": 10.0, "decay.dt_bias": 2.0})

    @staticmethod
    def oracle(m: Any, x: Tensor) -> Tensor:
        """Equations of the module's docstring."""
        z, u, b, c, delta = inputs(m, x)
        h = x.new_zeros(len(x), m.heads, m.state, m.head_dim)
        s, _ = ssd(u, delta, -m.decay.A_log.exp(), b, c, h)
        return output(m, s + m.D[:, None] * u, z)


def test_initial_decay_of_mamba2_is_the_authors() -> None:
    """softplus(dt_bias) is log-uniform in [0.001, 0.1], exp(A_log) uniform in [1, 16]."""
    mixer = Mamba2(site(dim=20_000), parts(linear=NoLayer), head_dim=1, state=1).double()
    # Initial values are float32.
    uniform(F.softplus(mixer.decay.dt_bias).log10(), -3 - 1e-4, -1 + 1e-4)
    uniform(mixer.decay.A_log.exp(), 1 - 1e-5, 16 + 1e-5)


class TestLogLinear(forms.Forms):
    mixer, given = LogLinear, {"state": 5}
    options: ClassVar = [
        {"state": 3, "head_dim": 8, "groups": 2, "levels": 3, "chunk": 16},
        pytest.param({}, marks=pytest.mark.slow),
    ]

    @staticmethod
    def stir(m: Any) -> None:
        m.L.normal_()

    @staticmethod
    def oracle(m: Any, x: Tensor) -> Tensor:
        """Equations of the module's docstring; states merge as carries do in a counter."""
        z, u, b, c, delta = inputs(m, x)
        b, c = (y.repeat_interleave(m.heads // m.groups, 2) for y in (b, c))
        scale = rearrange(m.level_proj(x), "b t (h l) -> b t h l", h=m.heads)
        scale = torch.log1p((scale * m.L).exp())
        states: dict[int, Tensor] = {}
        ys = []
        for t in range(x.shape[1]):
            keep = (-m.decay.A_log.exp() * delta[:, t]).exp()[..., None, None]
            states = {level: keep * state for level, state in states.items()}
            own = torch.einsum("bh,bhn,bhp->bhnp", delta[:, t], b[:, t], u[:, t])
            s = m.D[:, None] * u[:, t]
            for level, state in {**states, 0: own}.items():
                weight = scale[:, t, :, min(level, m.levels - 1)]
                s = s + weight[..., None] * torch.einsum("bhn,bhnp->bhp", c[:, t], state)
            ys.append(s)
            bit = 1
            while bit in states:
                own, bit = own + states.pop(bit), bit + 1
            states[bit] = own
        return output(m, torch.stack(ys, 1), z)


def test_levels_follow_the_longest_text() -> None:
    assert [LogLinear(site(max_len=n), parts()).levels for n in (64, 65, 16384)] == [7, 8, 15]
