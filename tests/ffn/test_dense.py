"""swiglu, relu2, none: shapes, formulas, and QDYT's matched compute."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from chimera.ffn.none import no_ffn
from chimera.ffn.relu2 import ReLU2
from chimera.ffn.swiglu import SwiGLU
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
