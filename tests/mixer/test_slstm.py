"""sLSTM layer against the authors' package with equal weights (SPEC M13)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn
from xlstm.blocks.slstm.layer import sLSTMLayer, sLSTMLayerConfig

from chimera.mixer.shared.headwise import HeadwiseLinear
from chimera.mixer.slstm import SLSTM
from tests.kit import close, ctx, double, grads, normal, parts, site, uniform
from tests.mixer import forms

E = 8


def randomise(module: nn.Module) -> None:
    """Randomise R (initially 0) and scales (initially 1), so that errors show."""
    with torch.no_grad():
        for p in module.parameters():
            p.add_(0.5 * torch.randn_like(p))


def theirs(**change: Any) -> sLSTMLayer:
    config = sLSTMLayerConfig(embedding_dim=32, num_heads=4, backend="vanilla", **change)
    return sLSTMLayer(config).double()


def build(**options: Any) -> Any:
    mixer = double(lambda: SLSTM(site(), parts(), **options))
    randomise(mixer)
    return mixer


def by_head(bias: Tensor) -> Tensor:
    """The authors' layout is by gate, then by head."""
    return bias.view(4, 4, E).transpose(0, 1).flatten(1)


@torch.no_grad()
def copy(layer: sLSTMLayer, mixer: SLSTM) -> None:
    """Copy the weights of `layer` into `mixer`."""
    cell = layer.slstm_cell
    # The authors' package calls the layer of ĩ `fgate` and the layer of f̃ `igate`.
    gates = [layer.fgate.weight, layer.igate.weight, layer.zgate.weight, layer.ogate.weight]
    pairs = [
        (mixer.conv, layer.conv1d.conv.weight[:, 0]),
        (mixer.conv_bias, layer.conv1d.conv.bias),
        (mixer.if_proj.weight, torch.cat(gates[:2], 1)),
        (mixer.zo_proj.weight, torch.cat(gates[2:], 1)),
        (mixer.recurrent, cell._recurrent_kernel_.view(4, 4 * E, E).mT),
        (mixer.gate_bias, by_head(cell._bias_)),
        (mixer.norm.weight, 1 + layer.group_norm.weight.view(4, E)),
    ]
    assert {id(ours) for ours, _ in pairs} == {id(p) for p in mixer.parameters()}
    for ours, value in pairs:
        ours.copy_(value)


@pytest.mark.parametrize("t", [1, 40])
def test_equals_the_authors_layer(t: int) -> None:
    layer, mixer = theirs(), build()
    randomise(layer)
    copy(layer, mixer)
    x = torch.randn(2, t, 32, dtype=torch.float64, requires_grad=True)
    y, want = mixer(x, ctx(tokens=t)).y, layer(x)
    close(y, want, 1e-7)
    close(grads(y.square().sum(), [x]), grads(want.square().sum(), [x]), 1e-7)


@pytest.mark.parametrize("layer", [0, 1, 2])
def test_starts_as_the_authors(layer: int) -> None:
    want = by_head(theirs(_block_idx=layer, _num_blocks=3).slstm_cell._bias_)
    mixer = SLSTM(replace(site(), depth=3, layer=layer), parts())
    for p in mixer.parameters():
        nn.init.constant_(p, 7.0)  # as the model's initialisation may do
    mixer.reset_parameters()
    close(mixer.gate_bias.data, want.float(), 1e-5)
    assert not mixer.recurrent.any()


def test_initial_weights_are_drawn_as_the_authors() -> None:
    mixer = SLSTM(site(dim=2048, heads=512), parts(), conv=9)
    for projection in (mixer.if_proj, mixer.zo_proj):
        normal(projection.weight, std=(2 / (5 * 2048)) ** 0.5)
    uniform(mixer.conv, -1 / 3, 1 / 3)
    uniform(mixer.conv_bias, -1 / 3, 1 / 3)


def test_headwise_layers_start_by_their_whole_width() -> None:
    normal(HeadwiseLinear(2000, 8000, 500, role="qkv").weight, std=(2 / (5 * 2000)) ** 0.5)


class TestForms(forms.Pieces):
    build = staticmethod(build)
    options: ClassVar = [{}, {"headwise": False, "conv": 1}]
    wide = False
