"""Convolution before attention against the sum, and SAIDL's parameter counts (SPEC M14)."""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from chimera.mixer.attention import Attention
from chimera.mixer.conv_attention import ConvAttention
from chimera.mixer.sparse_block import SparseBlock
from tests.kit import NoLayer, close, ctx, double, parts, site, uniform
from tests.mixer import forms


def build(causal: bool = True, inner: Any = Attention, **options: Any) -> Any:
    return double(lambda: ConvAttention(site(causal=causal), parts(), inner=inner, **options))


def convolved(mixer: Any, x: Tensor) -> Tensor:
    """Definition, token by token and tap by tap, for one sequence [t d]."""
    kernel = mixer.weight.shape[1]
    first = 1 - kernel if mixer.causal else -(kernel // 2)
    y = torch.zeros_like(x) if mixer.bias is None else mixer.bias.expand_as(x).clone()
    for i in range(len(x)):
        for j in range(kernel):
            if 0 <= i + first + j < len(x):
                y[i] += mixer.weight[:, j] * x[i + first + j]
    return y


@pytest.mark.parametrize(
    ("causal", "kernel", "bias"),
    [(True, 1, True), (True, 4, False), (True, 5, True), (False, 3, True), (False, 4, False)],
)
def test_equals_the_definition(causal: bool, kernel: int, bias: bool) -> None:
    mixer = build(causal, kernel=kernel, bias=bias)
    x = torch.randn(2, 11, 32, dtype=torch.float64)
    c = torch.stack([convolved(mixer, row) for row in x])
    here = ctx(tokens=11)
    close(mixer(x, here).y, c + mixer.inner(mixer.norm(x + c), here).y)
    mixer.norm = None
    close(mixer(x, here).y, mixer.inner(c, here).y)


class TestForms(forms.Pieces):
    build = staticmethod(build)
    options: ClassVar = [{}]
    encoders, constant, wide = True, False, False


class TestBlocks(TestForms):
    options: ClassVar = [{"inner": partial(SparseBlock, block=4)}]
    constant = True


def test_parameters_are_those_of_the_paper() -> None:
    """Table 6: 9216 additional parameters in six layers of width 256; text of 2.7: K·d."""
    wide = site(dim=256, heads=8)
    plain = sum(p.numel() for p in Attention(wide, parts()).parameters())

    def more(**options: Any) -> int:
        mixer = ConvAttention(wide, parts(), inner=Attention, **options)
        return sum(p.numel() for p in mixer.parameters()) - plain

    assert 6 * more() == 17_739_008 - 17_729_792
    assert more(bias=False, residual=False) == 768


def test_initial_convolution_is_uniform_by_its_taps() -> None:
    chosen = parts(linear=NoLayer)
    mixer = ConvAttention(site(dim=6000), chosen, inner=Attention, kernel=9)
    assert mixer.weight.shape == (6000, 9)
    uniform(mixer.weight, -1 / 3, 1 / 3)
    uniform(mixer.bias, -1 / 3, 1 / 3)
