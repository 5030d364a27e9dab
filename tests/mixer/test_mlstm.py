"""mLSTM layer against the authors' package with equal weights (SPEC M13)."""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar

import pytest
import torch
from torch import nn
from xlstm.blocks.mlstm.backends import parallel_stabilized_simple
from xlstm.blocks.mlstm.layer import mLSTMLayer, mLSTMLayerConfig

from chimera.mixer.mlstm import MLSTM
from tests.kit import (
    NoLayer,
    close,
    ctx,
    double,
    grads,
    normal,
    parts,
    site,
    uniform,
)  # fmt: skip
from tests.mixer import forms


def randomise(module: nn.Module) -> None:
    """Randomise gates (initially 0) and scales (initially 1), so that errors show."""
    with torch.no_grad():
        for p in module.parameters():
            p.add_(0.3 * torch.randn_like(p))


def theirs(length: int) -> mLSTMLayer:
    config = mLSTMLayerConfig(embedding_dim=32, num_heads=4, context_length=length)
    layer = mLSTMLayer(config).double()
    randomise(layer)
    # The paper has no such ε.
    layer.mlstm_cell.backend_fn = partial(parallel_stabilized_simple, eps=0.0)
    return layer


@torch.no_grad()
def copy(layer: mLSTMLayer, mixer: MLSTM) -> None:
    """Copy the weights of `layer` into `mixer`."""
    cell = layer.mlstm_cell
    pairs = [
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
    ]
    assert {id(ours) for ours, _ in pairs} == {id(p) for p in mixer.parameters()}
    for ours, value in pairs:
        ours.copy_(value)


def build(**options: Any) -> Any:
    mixer = double(lambda: MLSTM(site(), parts(), **options))
    randomise(mixer)
    return mixer


@pytest.mark.parametrize("t", [3, 130])
def test_equals_the_authors_layer(t: int) -> None:
    layer, mixer = theirs(t), build()
    copy(layer, mixer)
    x = torch.randn(2, t, 32, dtype=torch.float64, requires_grad=True)
    y, want = mixer(x, ctx(tokens=t)).y, layer(x)
    close(y, want, 1e-7)
    close(grads(y.square().sum(), [x]), grads(want.square().sum(), [x]), 1e-7)


class TestForms(forms.Pieces):
    build = staticmethod(build)
    options: ClassVar = [{"chunk": 8}, {"qkv_block": None, "expand": 1, "conv": 1, "bias": True}]
    wide = False


def test_starts_as_the_authors() -> None:
    mixer = MLSTM(site(), parts())
    for p in mixer.parameters():
        nn.init.constant_(p, 7.0)  # as the model's initialisation may do
    mixer.reset_parameters()
    i, f = mixer.gate_bias.chunk(2)
    close(f, torch.linspace(3, 6, 4))
    assert i.abs().max() < 1
    assert not mixer.gates.weight.any()
    assert mixer.q_proj.weight.abs().max() < 1


def test_initial_weights_are_drawn_as_the_authors() -> None:
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
