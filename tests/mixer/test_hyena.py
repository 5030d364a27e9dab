"""Hyena against its equations."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from chimera.mixer.hyena import Hyena
from tests.kit import double, parts, site
from tests.mixer import forms
from tests.reference.long_conv import long_conv

OPTIONS: list[dict[str, Any]] = [{}, {"order": 3, "conv": 1, "bands": 2, "width": 5}]


def build(**options: Any) -> Hyena:
    return double(lambda: Hyena(site(), parts(), **options))


def filters(mixer: Hyena, tokens: int) -> Tensor:
    """Values distance by distance; the longest text has 64 tokens."""
    f, rows = mixer.filters, []
    for j in range(tokens):
        bands = torch.linspace(1e-4, f.bands - 1, f.bands, dtype=torch.float64)
        angles = 2 * math.pi * j / 64 * bands
        y = torch.cat([torch.tensor([j / 63], dtype=torch.float64), angles.cos(), -angles.sin()])
        for weight, bias in zip((f.first, f.hidden[0], f.hidden[1]), f.biases, strict=True):
            y = torch.sin(f.frequency * (weight @ y + bias))
        rates = math.log(100) * torch.linspace(1 / 1.5, 1 / 0.3, f.channels, dtype=torch.float64)
        rows.append(f.last @ y * torch.exp(-rates * j / 63))
    return torch.stack(rows)


def by_sum(mixer: Hyena, x: Tensor) -> Tensor:
    """Equations of the module's docstring."""
    d, n = x.shape[-1], mixer.order
    mixed = forms.conv(mixer.in_proj(x), mixer.taps, mixer.bias)
    *gates, v = mixed.split(d, -1)
    h = filters(mixer, x.shape[1])
    z = v
    for i in range(n - 1):
        z = z * gates[n - 1 - i]
        z = long_conv(z, h[:, i * d : (i + 1) * d]) + mixer.skip[i] * z
    return mixer.out_proj(z * gates[0])


class TestForms(forms.Forms):
    build, oracle = staticmethod(build), staticmethod(by_sum)
    options = OPTIONS
    constant, wide = False, False
    tokens, size = (33,), 3.0
