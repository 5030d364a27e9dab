"""LayerNorm and RMSNorm against their equations, with their own ε (SPEC N1)."""

from __future__ import annotations

import pytest
import torch

from chimera.norm.standard import LayerNorm, RMSNorm
from tests.kit import close


@pytest.mark.parametrize("scale", [1.0, 1e-3])
def test_layernorm_and_rmsnorm_are_their_equations(scale: float) -> None:
    """Inputs of scale 1e-3 have a variance near ε."""
    x = scale * (torch.randn(2, 3, 8).double() + 1)
    for norm in (layer := LayerNorm(8).double(), rms := RMSNorm(8).double()):
        torch.nn.init.normal_(norm.weight)
    torch.nn.init.normal_(layer.bias)
    centred = x - x.mean(-1, keepdim=True)
    root = (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    close(layer(x), layer.weight * centred / root + layer.bias, 1e-12)
    close(rms(x), rms.weight * x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt(), 1e-12)
    other = LayerNorm(8, eps=0.5).double()
    close(other(x), centred / (centred.square().mean(-1, keepdim=True) + 0.5).sqrt(), 1e-12)
