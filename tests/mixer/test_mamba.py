"""Mamba against a public implementation: forms, initial values, padding, precision."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from mambapy.mamba import MambaBlock, MambaConfig
from torch import Tensor, nn

from chimera.mixer.mamba import Mamba
from chimera.mixer.shared.ssm import SelectiveSSM
from tests import kit
from tests.mixer import forms


def _mamba(seed: int = 0, **choices: int) -> nn.Module:
    return kit.double(lambda: Mamba(kit.site(), kit.parts(), **choices), seed)


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


def _public(ours: nn.Module, **choices: int) -> nn.Module:
    """mambapy's block with Chimera's weights."""
    theirs = MambaBlock(MambaConfig(d_model=32, n_layers=1, **choices)).double()
    shapes, own = theirs.state_dict(), ours.state_dict()
    theirs.load_state_dict({PUBLIC[n]: own[n].view_as(shapes[PUBLIC[n]]) for n in own})
    return theirs


def _run(mixer: nn.Module, x: Tensor, mask: Tensor | None = None) -> Tensor:
    return mixer(x, kit.ctx(mask, tokens=x.shape[1])).y


def test_it_is_the_public_block() -> None:
    """Values and all gradients. mambapy computes A in float32, which sets the tolerance."""
    ours = _mamba(state=8, expand=3, conv=3, dt_rank=5)
    theirs = _public(ours, d_state=8, expand_factor=3, d_conv=3, dt_rank=5, pscan=False)
    x = torch.randn(2, 65, 32, dtype=torch.float64, requires_grad=True)
    a, b = _run(ours, x), theirs(x)
    kit.close(a, b, 1e-7)
    weights = torch.randn(a.shape, dtype=a.dtype)
    (a * weights).sum().backward()
    dx, x.grad = x.grad, None
    (b * weights).sum().backward()
    kit.close(dx, x.grad, 1e-6)
    public = dict(theirs.named_parameters())
    for name, parameter in ours.named_parameters():
        want = public[PUBLIC[name]].grad
        kit.close(parameter.grad, want.view_as(parameter), 1e-6)


def test_initial_values_are_those_of_the_paper() -> None:
    ssm = _mamba().ssm
    kit.close(ssm.A_log.exp(), torch.arange(1.0, 17).double().expand(64, 16), 1e-6)
    kit.close(ssm.D, torch.ones(64).double(), 0)
    assert ssm.dt_weight.shape == (64, 2)
    assert ssm.sizes == (2, 16, 16)
    wide = SelectiveSSM(4096, kit.NoLayer, state=2, expand=2, conv=9, dt_rank=16)
    dt = F.softplus(wide.dt_bias.double())
    kit.uniform(dt.log10(), -3 - 1e-5, -1 + 1e-5)  # log-uniform in [0.001, 0.1], in float32
    kit.uniform(wide.dt_weight, -1 / 4, 1 / 4)
    kit.uniform(wide.conv_weight, -1 / 3 - 1e-6, 1 / 3 + 1e-6)
    kit.uniform(wide.conv_bias, -1 / 3 - 1e-6, 1 / 3 + 1e-6)


class TestForms(forms.Pieces):
    build = staticmethod(_mamba)
    wide, size = False, 1.0
