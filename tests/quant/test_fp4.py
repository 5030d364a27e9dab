"""MXFP4 and NVFP4: values against tables and against torchao, gradients, blocks, refusals."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from chimera.ops.minifloat import E2M1, E4M3, minifloat, mx_scales, nv_scales, scaled
from chimera.quant.mxfp4 import MXFP4
from chimera.quant.nvfp4 import NVFP4
from tests.kit import close, grads
from tests.reference import quantisation as fp4


def randn(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Values over a wide range."""
    return torch.randn(*shape, dtype=dtype) * torch.randn(*shape[:-1], 1, dtype=dtype).exp()


def test_e2m1_and_its_ties() -> None:
    ties = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 5.1, 7.0, 1e9, -2.5, 0.0])
    want = torch.tensor([0.0, 1.0, 1.0, 2.0, 2.0, 4.0, 4.0, 6.0, 6.0, 6.0, -2.0, 0.0])
    assert minifloat(ties, E2M1).equal(want)


def test_e4m3_is_torchs() -> None:
    """Every value between two neighbours, the ties, and what is below the least of them."""
    grid = torch.tensor(fp4.E4M3)
    x = torch.cat(
        [grid, (grid[1:] + grid[:-1]) / 2, torch.rand(4096) * 448, 2.0 ** -torch.rand(99)]
    )
    assert minifloat(x, E4M3).equal(x.to(torch.float8_e4m3fn).float())


@pytest.mark.parametrize("width", [32, 96, 40, 5])
def test_values_are_those_of_the_tables(width: int) -> None:
    x = randn(3, 4, width)
    close(scaled(x, mx_scales(x)), fp4.of_rows(fp4.mxfp4, x), 1e-12)
    whole = scaled(x, nv_scales(x, rows=False))
    close(whole, fp4.of_rows(fp4.nvfp4, x, float(x.abs().max())), 1e-10)
    for row in x.flatten(0, 1):
        alone = fp4.of_rows(fp4.nvfp4, row[None], float(row.abs().max()))
        close(scaled(row[None], nv_scales(row[None], rows=True)), alone, 1e-10)


def test_torchao_rounds_alike() -> None:
    """A second source: torchao's tensors of both formats, with the same scales."""
    formats = pytest.importorskip("torchao.prototype.mx_formats.mx_tensor")
    nv = pytest.importorskip("torchao.prototype.mx_formats.nvfp4_tensor")
    x = randn(16, 64, dtype=torch.float32)
    theirs = formats.MXTensor.to_mx(x, torch.float4_e2m1fn_x2, 32).dequantize(torch.float32)
    assert scaled(x, mx_scales(x)).equal(theirs)
    second = nv.per_tensor_amax_to_scale(x.abs().max())
    theirs = nv.NVFP4Tensor.to_nvfp4(x, per_tensor_scale=second).dequantize(torch.float32)
    mine = scaled(x, nv_scales(x, rows=False))
    # Their division by a scale is a product with its inverse, which moves a tie now and then.
    assert (mine - theirs).abs().gt(1e-6 * theirs.abs()).float().mean() < 0.002


@pytest.mark.parametrize("make", [MXFP4, NVFP4])
def test_layers_round_both_factors(make: Any) -> None:
    layer = make().linear(48, 40, bias=True, role="up").double()
    x, g = randn(2, 7, 48).requires_grad_(), randn(2, 7, 40)
    if make is MXFP4:
        rounded, weight = fp4.of_rows(fp4.mxfp4, x), fp4.of_rows(fp4.mxfp4, layer.weight)
    else:
        tokens = [
            fp4.of_rows(fp4.nvfp4, t[None], float(t.abs().max())) for t in x.detach().flatten(0, 1)
        ]
        rounded = torch.cat(tokens).view(x.shape)
        weight = fp4.of_rows(fp4.nvfp4, layer.weight, float(layer.weight.detach().abs().max()))
    theirs = F.linear(x + (rounded - x).detach(), weight + 0 * layer.weight, layer.bias)
    close(layer(x), theirs, 1e-10)
    close(grads((layer(x) * g).sum(), [x]), grads((theirs * g).sum(), [x]), 1e-10)
    [of_weight] = grads((layer(x) * g).sum(), [layer.weight])
    close(of_weight, g.flatten(0, 1).T @ rounded.flatten(0, 1).detach(), 1e-10)


@pytest.mark.parametrize("scales", [mx_scales, partial(nv_scales, rows=True)])
def test_zeros_and_what_overflowed(scales: Any) -> None:
    x = torch.zeros(2, 64)
    x[1, 40] = torch.inf
    y = scaled(x, scales(x))
    assert y[0].equal(x[0])
    assert y[1, 32:48].isnan().all()  # the guard sees it
    small = torch.full((1, 32), 1e-30)
    small[0, 0] = 1.0
    assert scaled(small, scales(small))[0].equal((small[0] > 0.5).float())


@pytest.mark.parametrize("make", [MXFP4, NVFP4])
def test_tables_and_heads_are_options(make: Any) -> None:
    table = make(embedding=True).embedding(9, 48)
    ids = torch.tensor([[3, 8], [0, 3]])
    assert table(ids).equal(table.table()[ids])
    assert not table.table().equal(table.weight)
    assert not make().quantise_embedding
    x = torch.randn(2, 48)
    for head in (False, True):
        layer = make(head=head).linear(48, 8, bias=False, role="head")
        assert layer(x).equal(F.linear(x, layer.weight)) != head
    assert make(activations=False).activation(8) is None
