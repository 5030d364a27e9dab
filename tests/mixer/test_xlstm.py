"""mLSTM and sLSTM layers against the authors' package with equal weights (SPEC M13)."""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn
from xlstm.blocks.mlstm.backends import parallel_stabilized_simple
from xlstm.blocks.mlstm.layer import mLSTMLayer, mLSTMLayerConfig
from xlstm.blocks.slstm.layer import sLSTMLayer, sLSTMLayerConfig

from chimera.mixer.mlstm import MLSTM
from chimera.mixer.shared.headwise import HeadwiseLinear
from chimera.mixer.slstm import SLSTM
from tests.kit import NoLayer, close, ctx, grads, normal, parts, site, uniform
from tests.mixer import forms

E = 8


@torch.no_grad()
def randomise(module: nn.Module, by: float) -> None:
    """Change gates and R, initially 0, and scales, initially 1, so that errors show."""
    for p in module.parameters():
        p.add_(by * torch.randn_like(p))


@torch.no_grad()
def copied(mixer: nn.Module, pairs: list[tuple[Tensor, Tensor]]) -> None:
    """Give each parameter of `mixer` the value beside it."""
    assert {id(ours) for ours, _ in pairs} == {id(p) for p in mixer.parameters()}
    for ours, value in pairs:
        ours.copy_(value)


def equal(mixer: nn.Module, layer: nn.Module, t: int) -> None:
    x = torch.randn(2, t, 32, dtype=torch.float64, requires_grad=True)
    y, want = mixer(x, ctx(tokens=t)).y, layer(x)
    close(y, want, 1e-7)
    close(grads(y.square().sum(), [x]), grads(want.square().sum(), [x]), 1e-7)


class TestMLSTM(forms.Pieces):
    mixer, wide = MLSTM, False
    options: ClassVar = [{"chunk": 8}, {"qkv_block": None, "expand": 1, "conv": 1, "bias": True}]

    @staticmethod
    def stir(m: Any) -> None:
        randomise(m, 0.3)


@pytest.mark.parametrize("t", [3, 130])
def test_mlstm_equals_the_authors_layer(t: int) -> None:
    config = mLSTMLayerConfig(embedding_dim=32, num_heads=4, context_length=t)
    layer, mixer = mLSTMLayer(config).double(), TestMLSTM.build()
    randomise(layer, 0.3)
    cell = layer.mlstm_cell
    cell.backend_fn = partial(parallel_stabilized_simple, eps=0.0)  # the paper has no such ε
    copied(
        mixer,
        [
            (mixer.up_proj.weight, layer.proj_up.weight),
            (mixer.conv, layer.conv1d.conv.weight[:, 0]),
            (mixer.conv_bias, layer.conv1d.conv.bias),
            (mixer.q_proj.weight, layer.q_proj.weight),
            (mixer.k_proj.weight, layer.k_proj.weight),
            (mixer.v_proj.weight, layer.v_proj.weight),
            (mixer.gates.weight, torch.cat([cell.igate.weight, cell.fgate.weight])),
            (mixer.gate_bias, torch.cat([cell.igate.bias, cell.fgate.bias])),
            (mixer.norm.weight, 1 + cell.outnorm.weight.view_as(mixer.norm.weight)),
            (mixer.skip, layer.learnable_skip),
            (mixer.o_proj.weight, layer.proj_down.weight),
        ],
    )
    equal(mixer, layer, t)


def overwritten(mixer: Any) -> Any:
    """As the model's initialisation may do, before the mixer's own."""
    for p in mixer.parameters():
        nn.init.constant_(p, 7.0)
    mixer.reset_parameters()
    return mixer


def test_mlstm_starts_as_the_authors() -> None:
    mixer = overwritten(MLSTM(site(), parts()))
    i, f = mixer.gate_bias.chunk(2)
    close(f, torch.linspace(3, 6, 4))
    assert i.abs().max() < 1
    assert not mixer.gates.weight.any()
    assert mixer.q_proj.weight.abs().max() < 1


def test_initial_weights_of_mlstm_are_drawn_as_the_authors() -> None:
    mixer = MLSTM(site(dim=4096, heads=4096), parts(linear=NoLayer), conv=9)
    for projection in (mixer.q_proj, mixer.k_proj, mixer.v_proj):
        normal(projection.weight, std=(2 / (5 * 4096)) ** 0.5)
    uniform(mixer.conv, -1 / 3, 1 / 3)
    uniform(mixer.conv_bias, -1 / 3, 1 / 3)
    normal(mixer.gate_bias[:4096], std=0.1)
    close(mixer.skip.data, torch.ones(8192), 0.0)


def test_adapters_of_the_paper_have_its_parameters() -> None:
    """SAIDL 3.7: rank 8 with gates on q, k, v and out in 4 blocks, with a classifier: 123522."""
    mixer = MLSTM(site(dim=256), parts())
    wrapped = (mixer.q_proj, mixer.k_proj, mixer.v_proj, mixer.o_proj)
    low_rank = sum(8 * (m.in_features + m.out_features + 1) for m in wrapped)
    assert 4 * low_rank + 2 * 256 + 2 == 123_522


class TestSLSTM(forms.Pieces):
    mixer, wide = SLSTM, False
    options: ClassVar = [{}, {"headwise": False, "conv": 1}]

    @staticmethod
    def stir(m: Any) -> None:
        randomise(m, 0.5)


def theirs(**change: Any) -> sLSTMLayer:
    config = sLSTMLayerConfig(embedding_dim=32, num_heads=4, backend="vanilla", **change)
    return sLSTMLayer(config).double()


def by_head(bias: Tensor) -> Tensor:
    """The authors' layout is by gate, then by head."""
    return bias.view(4, 4, E).transpose(0, 1).flatten(1)


@pytest.mark.parametrize("t", [1, 40])
def test_slstm_equals_the_authors_layer(t: int) -> None:
    layer, mixer = theirs(), TestSLSTM.build()
    randomise(layer, 0.5)
    cell = layer.slstm_cell
    # The authors' package calls the layer of ĩ `fgate` and the layer of f̃ `igate`.
    gates = [layer.fgate.weight, layer.igate.weight, layer.zgate.weight, layer.ogate.weight]
    copied(
        mixer,
        [
            (mixer.conv, layer.conv1d.conv.weight[:, 0]),
            (mixer.conv_bias, layer.conv1d.conv.bias),
            (mixer.if_proj.weight, torch.cat(gates[:2], 1)),
            (mixer.zo_proj.weight, torch.cat(gates[2:], 1)),
            (mixer.recurrent, cell._recurrent_kernel_.view(4, 4 * E, E).mT),
            (mixer.gate_bias, by_head(cell._bias_)),
            (mixer.norm.weight, 1 + layer.group_norm.weight.view(4, E)),
        ],
    )
    equal(mixer, layer, t)


@pytest.mark.parametrize("layer", [0, 1, 2])
def test_slstm_starts_as_the_authors(layer: int) -> None:
    want = by_head(theirs(_block_idx=layer, _num_blocks=3).slstm_cell._bias_)
    mixer = overwritten(SLSTM(site(depth=3, layer=layer), parts()))
    close(mixer.gate_bias.data, want.float(), 1e-5)
    assert not mixer.recurrent.any()


def test_initial_weights_of_slstm_are_drawn_as_the_authors() -> None:
    mixer = SLSTM(site(dim=2048, heads=512), parts(), conv=9)
    for projection in (mixer.if_proj, mixer.zo_proj):
        normal(projection.weight, std=(2 / (5 * 2048)) ** 0.5)
    uniform(mixer.conv, -1 / 3, 1 / 3)
    uniform(mixer.conv_bias, -1 / 3, 1 / 3)
    # Headwise layers start by their whole width.
    normal(HeadwiseLinear(2000, 8000, 500, role="qkv").weight, std=(2 / (5 * 2000)) ** 0.5)
