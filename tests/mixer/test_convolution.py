"""Hyena against its equations; convolution before attention against the sum (SPEC M14)."""

from __future__ import annotations

import math
from functools import partial
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from chimera.mixer.attention import Attention
from chimera.mixer.conv_attention import ConvAttention
from chimera.mixer.hyena import Hyena
from chimera.mixer.sparse_block import SparseBlock
from tests.kit import NoLayer, close, ctx, parts, site, uniform
from tests.mixer import forms
from tests.reference.recurrences import long_conv


class TestHyena(forms.Forms):
    mixer = Hyena
    options: ClassVar = [{}, {"order": 3, "conv": 1, "bands": 2, "width": 5}]
    constant, wide, tokens, size = False, False, (33,), 3.0

    @staticmethod
    def oracle(m: Any, x: Tensor) -> Tensor:
        """Equations of the module's docstring."""
        d, n = x.shape[-1], m.order
        *gates, z = forms.conv(m.in_proj(x), m.taps, m.bias).split(d, -1)
        h = filters(m, x.shape[1])
        for i in range(n - 1):
            z = z * gates[n - 1 - i]
            z = long_conv(z, h[:, i * d : (i + 1) * d]) + m.skip[i] * z
        return m.out_proj(z * gates[0])


def filters(m: Any, tokens: int) -> Tensor:
    """Values distance by distance; the longest text has 64 tokens."""
    f, rows = m.filters, []
    for j in range(tokens):
        bands = torch.linspace(1e-4, f.bands - 1, f.bands, dtype=torch.float64)
        angles = 2 * math.pi * j / 64 * bands
        y = torch.cat([torch.tensor([j / 63], dtype=torch.float64), angles.cos(), -angles.sin()])
        for weight, bias in zip((f.first, f.hidden[0], f.hidden[1]), f.biases, strict=True):
            y = torch.sin(f.frequency * (weight @ y + bias))
        rates = math.log(100) * torch.linspace(1 / 1.5, 1 / 0.3, f.channels, dtype=torch.float64)
        rows.append(f.last @ y * torch.exp(-rates * j / 63))
    return torch.stack(rows)


class TestConvAttention(forms.Pieces):
    mixer, given = ConvAttention, {"inner": Attention}
    encoders, constant, wide = True, False, False


class TestBlocks(TestConvAttention):
    options: ClassVar = [{"inner": partial(SparseBlock, block=4)}]
    constant = True


@pytest.mark.parametrize(
    ("causal", "kernel", "bias"),
    [(True, 1, True), (True, 4, False), (True, 5, True), (False, 3, True), (False, 4, False)],
)
def test_convolution_before_attention_is_the_sum(causal: bool, kernel: int, bias: bool) -> None:
    mixer, x = TestConvAttention.build(causal, kernel=kernel, bias=bias), torch.randn(2, 11, 32)
    x, first = x.double(), 1 - kernel if causal else -(kernel // 2)
    c = torch.zeros_like(x) if mixer.bias is None else mixer.bias.expand_as(x).clone()
    for i in range(11):
        for j in range(kernel):
            if 0 <= i + first + j < 11:
                c[:, i] += mixer.weight[:, j] * x[:, i + first + j]
    here = ctx(tokens=11)
    close(mixer(x, here).y, c + mixer.inner(mixer.norm(x + c), here).y)
    mixer.norm = None
    close(mixer(x, here).y, mixer.inner(c, here).y)


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
    mixer = ConvAttention(site(dim=6000), parts(linear=NoLayer), inner=Attention, kernel=9)
    assert mixer.weight.shape == (6000, 9)
    uniform(mixer.weight, -1 / 3, 1 / 3)
    uniform(mixer.bias, -1 / 3, 1 / 3)
