"""LayerNorm, RMSNorm, DyT and static tanh against their equations (SPEC N1, N2, N4)."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from chimera.norm.dyt import DyT
from chimera.norm.none import NoNorm
from chimera.norm.standard import LayerNorm, RMSNorm
from chimera.norm.static_tanh import StaticTanh
from tests.kit import close, grads, randn


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


def filled(norm: nn.Module) -> nn.Module:
    """Norm in float64 with random parameters."""
    norm = norm.double()
    for parameter in norm.parameters():
        nn.init.uniform_(parameter, 0.3, 1.2)
    return norm


@pytest.mark.parametrize("alpha", ["channel", "scalar"])
def test_dyt_is_its_equation(alpha: str) -> None:
    norm, x = filled(DyT(6, alpha=alpha)), randn(2, 3, 6)
    y = norm(x)
    for i in range(6):
        a = norm.alpha[i] if alpha == "channel" else norm.alpha
        close(y[..., i], norm.weight[i] * torch.tanh(a * x[..., i]) + norm.bias[i], 1e-12)


def test_dyt_starts_and_counts_as_in_titan() -> None:
    """Eq. 49, 50; Table 6: 3d parameters with α per channel, 2d + 1 with a scalar α."""
    assert (DyT(6).alpha == 0.5).all()
    assert (DyT(6, init=0.8).alpha == 0.8).all()
    assert [
        sum(p.numel() for p in DyT(6, alpha=a).parameters()) for a in ("channel", "scalar")
    ] == [
        18,
        13,
    ]


@pytest.mark.parametrize("alpha", ["channel", "scalar"])
def test_dyt_slope_is_bounded_and_its_gradient_right(alpha: str) -> None:
    norm, x = filled(DyT(6, alpha=alpha)), randn(2, 3, 6).requires_grad_()
    slope = grads(norm(x).sum(), [x])[0]
    assert (slope.abs() <= (norm.weight * norm.alpha).abs() + 1e-12).all()  # TITAN eq. 48
    assert torch.autograd.gradcheck(norm, (x,))


def test_static_tanh_learns_no_alpha() -> None:
    norm, x = filled(StaticTanh(6, alpha=0.7)), randn(2, 3, 6)
    assert {name for name, _ in norm.named_parameters()} == {"weight", "bias"}
    close(norm(x), norm.weight * torch.tanh(0.7 * x) + norm.bias, 1e-12)


@pytest.mark.parametrize("norm", [DyT(6), StaticTanh(6)], ids=["dyt", "static"])
def test_no_token_sees_another(norm: nn.Module) -> None:
    norm, x = norm.double(), randn(3, 4, 6)
    close(norm(x)[1:2, 2:3], norm(x[1:2, 2:3]), 0.0)
    assert norm(x.bfloat16()).dtype == torch.bfloat16


def test_none_is_the_identity() -> None:
    x = randn(2, 3, 6)
    assert NoNorm(6)(x) is x
    assert not list(NoNorm(6).parameters())
