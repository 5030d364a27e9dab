"""swiglu, geglu, relu2, relu2_glu, none: shapes, formulas, and QDYT's matched compute."""

from __future__ import annotations

from typing import Any

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


def normed(x: torch.Tensor) -> torch.Tensor:
    x = x - x.mean(-1, keepdim=True)
    return x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt()


@pytest.mark.parametrize(
    ("make", "options", "formula"),
    [
        (SwiGLU, {}, lambda a, b: a * b * b.sigmoid()),
        (GEGLU, {"approximate": "none"}, lambda a, b: a * b * (1 + torch.erf(b / 2**0.5)) / 2),
        (
            GEGLU,  # T5's approximation
            {"approximate": "tanh"},
            lambda a, b: (
                a * b * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (b + 0.044715 * b**3))) / 2
            ),
        ),
        (ReLU2GLU, {"inner_norm": True}, lambda a, b: normed(a * b.clamp(min=0) ** 2)),
        (ReLU2GLU, {"inner_norm": False}, lambda a, b: a * b.clamp(min=0) ** 2),
        (ReLU2, {}, lambda a, b: a.clamp(min=0) ** 2 + b.clamp(min=0) ** 2),
        (ReLU2, {"expand": 4, "fold": 1}, lambda a, b: torch.cat([a, b], -1).clamp(min=0) ** 2),
    ],
)
def test_is_its_equation(make: Any, options: dict[str, Any], formula: Any) -> None:
    """Of the two halves of what `up` gives; its weights are large, so that all kinds differ."""
    ffn = double(lambda: make(site(), parts(), **options))
    ffn.up.weight.data.mul_(3)
    x = torch.randn(2, 5, 32, dtype=torch.float64)
    a, b = (x @ ffn.up.weight.T).chunk(2, -1)
    close(ffn(x, ctx(tokens=5)).y, formula(a, b) @ ffn.down.weight.T, 1e-10)


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
