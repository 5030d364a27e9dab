"""swiglu, geglu, relu2, relu2_glu, none: shapes, formulas, and QDYT's matched compute."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from chimera.ffn.geglu import GEGLU
from chimera.ffn.none import no_ffn
from chimera.ffn.relu2 import ReLU2
from chimera.ffn.relu2_glu import ReLU2GLU
from chimera.ffn.swiglu import SwiGLU
from chimera.quant.hbit import HBit
from tests.kit import close, ctx, double, parts, site


def flops(ffn: nn.Module) -> int:
    with FlopCounterMode(display=False) as counter:
        ffn(torch.randn(2, 5, 32), ctx(tokens=5))
    return counter.get_total_flops()


def test_swiglu_gates_the_first_half_by_silu_of_the_second() -> None:
    ffn = double(lambda: SwiGLU(site(), parts()))
    x = torch.randn(2, 5, 32, dtype=torch.float64)
    a, b = ffn.up.weight[:128], ffn.up.weight[128:]
    close(ffn(x, ctx(tokens=5)).y, ((x @ a.T) * F.silu(x @ b.T)) @ ffn.down.weight.T)


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_geglu_is_its_equation(approximate: str) -> None:
    """x·Φ(x) by the error function, or T5's approximation, and not the other."""
    ffn = double(lambda: GEGLU(site(), parts(), approximate=approximate))  # type: ignore[arg-type]
    x = torch.randn(2, 5, 32, dtype=torch.float64)
    a, b = x @ ffn.up.weight[:128].T, 3 * (x @ ffn.up.weight[128:].T)
    ffn.up.weight.data[128:] *= 3
    exact = b * (1 + torch.erf(b / 2**0.5)) / 2
    near = b * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (b + 0.044715 * b**3))) / 2
    assert (exact - near).abs().max() > 1e-4
    gate = exact if approximate == "none" else near
    close(ffn(x, ctx(tokens=5)).y, (a * gate) @ ffn.down.weight.T, 1e-10)


@pytest.mark.parametrize("inner_norm", [True, False])
def test_relu2_glu_is_its_equation(inner_norm: bool) -> None:
    ffn = double(lambda: ReLU2GLU(site(), parts(), inner_norm=inner_norm))
    x = torch.randn(2, 5, 32, dtype=torch.float64)
    a, b = x @ ffn.up.weight[:128].T, x @ ffn.up.weight[128:].T
    product = a * b.clamp(min=0) ** 2
    assert (product == 0).double().mean() > 0.3
    if inner_norm:
        product = product - product.mean(-1, keepdim=True)
        product = product / (product.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    close(ffn(x, ctx(tokens=5)).y, product @ ffn.down.weight.T, 1e-10)


def test_relu2_sums_the_squares_of_its_halves() -> None:
    ffn = double(lambda: ReLU2(site(), parts()))
    x = torch.randn(2, 5, 32, dtype=torch.float64)
    a, b = ffn.up.weight[:128], ffn.up.weight[128:]
    expected = (F.relu(x @ a.T) ** 2 + F.relu(x @ b.T) ** 2) @ ffn.down.weight.T
    close(ffn(x, ctx(tokens=5)).y, expected)


def test_relu2_unfolded_is_the_usual_form() -> None:
    ffn = double(lambda: ReLU2(site(), parts(), expand=4, fold=1))
    x = torch.randn(2, 5, 32, dtype=torch.float64)
    close(ffn(x, ctx(tokens=5)).y, F.relu(x @ ffn.up.weight.T) ** 2 @ ffn.down.weight.T)


def test_matched_compute() -> None:
    """QDYT 3.4: widths 8d, 4d, d in both; without folding, the cost is a third higher."""
    gated, squared = SwiGLU(site(), parts()), ReLU2(site(), parts())
    for name in ("up", "down"):
        assert getattr(gated, name).weight.shape == getattr(squared, name).weight.shape
    assert flops(gated) == flops(squared) == 2 * 10 * 12 * 32 * 32
    assert flops(ReLU2(site(), parts(), fold=1)) * 3 == flops(gated) * 4
    assert flops(ReLU2(site(), parts(), expand=6, fold=1)) == flops(gated)


def test_a_fold_that_does_not_divide_is_refused() -> None:
    with pytest.raises(ValueError, match="fold=3 does not divide the inner width 256"):
        ReLU2(site(), parts(), fold=3)


def test_biases_are_an_option() -> None:
    for build in (SwiGLU, ReLU2):
        assert build(site(), parts()).up.bias is None
        assert build(site(), parts(), bias=True).down.bias is not None


def test_no_ffn_is_nothing_to_build() -> None:
    assert no_ffn(site(), parts()) is None


@pytest.mark.parametrize("bits", [4, 8])
def test_swiglu_rounds_its_halves(bits: int) -> None:
    """QDYT 3.4: y = W_down (a_q ⊙ SiLU(b_q)), each on the grid of inputs of linear layers."""
    quant = HBit(activations="per_token", activation_bits=bits)  # type: ignore[arg-type]
    ffn = SwiGLU(site(), parts(activation=quant.activation), quantise_halves=True).eval()
    x = torch.randn(2, 5, 32)
    a, b = (grid(z, bits) for z in ffn.up(x).chunk(2, -1))
    close(ffn(x, ctx(tokens=5)).y, ffn.down(a * F.silu(b)), 1e-6)
    plain = SwiGLU(site(), parts(activation=quant.activation))
    assert plain.grids is None
    full = SwiGLU(site(), parts(), quantise_halves=True)
    full.load_state_dict(plain.state_dict())
    close(full(x, ctx(tokens=5)).y, plain(x, ctx(tokens=5)).y, 0)


def grid(x: torch.Tensor, bits: int) -> torch.Tensor:
    """The grid per token, written out."""
    step = x.abs().amax(-1, keepdim=True) / (2 ** (bits - 1) - 1)
    return (x / step).round() * step
