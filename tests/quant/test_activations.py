"""Activation grids and rotations: levels, statistics, straight-through gradients (SPEC Q6)."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from chimera.contract_tests import zoo
from chimera.ops import grid
from chimera.ops.hadamard import block
from chimera.quant.shared.inputs import HasGrid, NormedPerToken, PerChannel, PerToken, Rotation
from tests.kit import close, grads, randn
from tests.reference.quantisation import hadamard

BITS = [2, 4, 8]


def levels(x: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
    """Number of distinct grid points in x; fails if x is not on the grid."""
    points = x / step
    close(points, points.round(), 1e-9)
    return points.round().unique()


@pytest.mark.parametrize("bits", BITS)
def test_per_token_grid(bits: int) -> None:
    x = randn(6, 40, 512)
    top = 2 ** (bits - 1) - 1
    peak = x.abs().amax(-1, keepdim=True)
    y = PerToken(bits)(x)
    points = levels(y, peak / top)
    assert points.abs().max() == top
    assert len(points) == 2 * top + 1
    assert ((y - x).abs() <= peak / top / 2 + 1e-12).all()


@pytest.mark.parametrize("bits", BITS)
def test_per_channel_grid_in_training_and_evaluation(bits: int) -> None:
    x = 2 * torch.rand(6, 400, 24, dtype=torch.float64) - 1
    top = 2 ** (bits - 1) - 1
    grid = PerChannel(24, bits, momentum=0.1).double()
    y = grid(x)
    step = x.abs().amax((0, 1)) / top
    assert len(levels(y, step)) == 2 * top + 1
    grid.eval()
    points = levels(
        grid(3 * x), step
    )  # values above the running maxima are clipped to 2^bits levels
    assert (points.min(), points.max()) == (-top - 1, top)
    assert len(points) == 2**bits


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("bits", BITS)
def test_noise_does_not_turn_halves(bits: int, dtype: torch.dtype) -> None:
    """Whole numbers times a scale, as behind a quantised layer: of the largest, 2·top·scale."""
    top = 2 ** (bits - 1) - 1
    whole = torch.randint(-2 * top, 2 * top + 1, (8, 64), dtype=dtype)
    whole[:, 0] = 2 * top
    want = whole.sign() * (whole.abs() / 2 + 0.5).floor()
    noise = 1 + 4 * torch.finfo(dtype).eps * (2 * torch.rand(8, 64, dtype=dtype) - 1)
    x = whole * noise * 0.37
    channels = PerChannel(64, bits, 0.1, "away").to(dtype).eval()
    for module in (PerToken(bits, "away"), NormedPerToken(bits, "away"), channels):
        y = module(x)
        assert torch.equal((y * top / y.abs().amax(-1, keepdim=True)).round(), want)
        if isinstance(module, HasGrid):
            assert torch.equal(module.grid(x).codes, want.to(torch.int8))


@pytest.mark.parametrize("module", [PerToken(4), PerChannel(16, 4, 0.1)], ids=["token", "channel"])
@pytest.mark.parametrize("training", [True, False])
def test_gradient_passes_unchanged(module: nn.Module, training: bool) -> None:
    x = randn(2, 3, 16).requires_grad_()
    g = randn(2, 3, 16)
    y = module.double().train(training)(x)
    assert not torch.equal(y, x)
    close(grads((y * g).sum(), [x])[0], g, 0.0)


def test_running_maxima_follow_their_rule() -> None:
    grid = PerChannel(16, 4, momentum=0.25).double()
    first, second = randn(2, 5, 16), randn(2, 5, 16)
    grid(first)
    close(grid.maxima, first.abs().amax((0, 1)), 0.0)
    grid(second)
    expected = 0.75 * first.abs().amax((0, 1)) + 0.25 * second.abs().amax((0, 1))
    close(grid.maxima, expected, 1e-12)
    before = grid.maxima.clone()
    grid.eval()(10 * first)
    close(grid.maxima, before, 0.0)


def test_before_any_training_evaluation_is_per_token() -> None:
    x = randn(2, 5, 16)
    close(PerChannel(16, 4, 0.1).double().eval()(x), PerToken(4)(x), 1e-12)


@pytest.mark.parametrize("reentrant", [True, False])
def test_recomputation_counts_once(reentrant: bool) -> None:
    plain, wrapped = (PerChannel(16, 4, 0.5).double() for _ in range(2))
    for _ in range(3):
        x = randn(2, 5, 16).requires_grad_()
        plain(x).sum().backward()
        checkpoint(wrapped, x, use_reentrant=reentrant).sum().backward()
    close(wrapped.maxima, plain.maxima, 0.0)


def test_no_tokens_at_all() -> None:
    grid = PerChannel(16, 4, 0.1)
    assert grid(torch.empty(0, 16)).shape == (0, 16)
    assert not grid.maxima.any()
    assert PerToken(4)(torch.empty(0, 16)).shape == (0, 16)
    assert NormedPerToken(8)(torch.empty(0, 16)).shape == (0, 16)


def test_tokens_of_zeros_stay_zero() -> None:
    x = torch.zeros(2, 3, 16, dtype=torch.float64, requires_grad=True)
    for module in (PerToken(4), PerChannel(16, 4, 0.1).double(), NormedPerToken(8)):
        y = module(x)
        assert not y.any()
        assert grads(y.sum(), [x])[0].isfinite().all()


def test_normed_is_rms_norm_then_grid_with_the_gradient_of_the_norm() -> None:
    x = randn(3, 4, 48).requires_grad_()
    g = randn(3, 4, 48)
    normed = F.rms_norm(x, (48,), eps=1e-6)
    y = NormedPerToken(8)(x)
    close(y, PerToken(8)(normed), 1e-12)
    close(grads((y * g).sum(), [x]), grads((normed * g).sum(), [x]), 1e-12)


def test_bfloat16_lands_on_the_float32_grid() -> None:
    x = torch.randn(8, 64).bfloat16()
    assert PerToken(8)(x).dtype == torch.bfloat16
    close(PerToken(8)(x), PerToken(8)(x.float()).bfloat16(), 0.0)
    close(NormedPerToken(8)(x), NormedPerToken(8)(x.float()).bfloat16(), 0.0)


@pytest.mark.parametrize("name", ["bitnet158", "hbit", "int4_act"])
def test_a_half_precision_input_is_rounded_to_the_grid_in_float32(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Norm, rotation and grid of a bf16 input are those of the same numbers in float32."""
    layer: Any = zoo.choices(quant=name).quant.linear(64, 32, bias=False, role="out")
    layer.eval()
    x, seen = torch.randn(9, 64).bfloat16(), []
    own = F.linear
    monkeypatch.setattr(F, "linear", lambda x, *rest: (seen.append(x), own(x, *rest))[1])
    with torch.autocast("cpu", torch.bfloat16):
        layer(x)
    assert torch.equal(seen[0], layer.inputs(x.float()).bfloat16())


def test_layers_with_one_input_round_it_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Queries, keys, values and gate: the numbers and gradients of rounding it for each."""
    made: list[torch.Tensor] = []
    whole = grid._rms_rounded

    def counted(x: torch.Tensor, *rest: Any) -> Any:
        made.append(x)
        return whole(x, *rest)

    monkeypatch.setattr(grid, "_rms_rounded", counted)
    x, g = torch.randn(2, 5, 16, requires_grad=True), torch.randn(3, 2, 5, 16)
    ys = [grid.rms_grid(x, 8, 1e-6) for _ in g]
    assert len(made) == 1
    (shared,) = torch.autograd.grad(ys, x, list(g))
    alone = []
    for each in g:
        y = grid.rms_grid(x.clone(), 8, 1e-6)
        assert torch.equal(y, ys[0])
        alone.append(torch.autograd.grad(grid.rms_grid(x, 8, 1e-6), x, each)[0])
    assert torch.equal(shared, (alone[2] + alone[1]) + alone[0])  # autograd goes backwards
    made.clear()
    for bits, dtype in ((8, None), (4, None), (4, torch.bfloat16), (8, None)):
        assert grid.rms_grid(x, bits, 1e-6, dtype).dtype == (dtype or x.dtype)
    assert (
        len(made) == 3
    )  # the first was the last of before; another grid, dtype, and the first again
    z = torch.randn(4, 16)
    codes = grid.rms_codes(z, 8, 1e-6)[0].clone()
    z.mul_(-1)
    assert torch.equal(grid.rms_codes(z, 8, 1e-6)[0], -codes)  # x was written to
    with torch.inference_mode():
        assert torch.equal(grid.rms_codes(z, 8, 1e-6)[0], -codes)


def rotation(dim: int, transform: str) -> torch.nn.Module:
    return Rotation(dim, transform).double()


@pytest.mark.parametrize("dim", [1, 50, 192, 256])
@pytest.mark.parametrize("transform", ["dense", "fast"])
def test_rotation_is_block_diagonal_hadamard(dim: int, transform: str) -> None:
    n = block(dim)
    expected = torch.block_diag(*[hadamard(n)] * (dim // n))
    matrix = rotation(dim, transform)(torch.eye(dim, dtype=torch.float64))
    close(matrix, expected, 1e-12)
    close(matrix @ matrix.T, torch.eye(dim, dtype=torch.float64), 1e-12)


def test_blocks_are_as_large_as_they_can_be() -> None:
    assert [block(d) for d in (1, 7, 8, 50, 192, 768)] == [1, 1, 8, 2, 64, 256]


@pytest.mark.parametrize("products", [False, True])
@pytest.mark.parametrize("dim", [32, 192, 768, 1024])
def test_fast_rotation_equals_dense_with_gradients(
    monkeypatch: pytest.MonkeyPatch, dim: int, products: bool
) -> None:
    monkeypatch.setattr("chimera.ops.together.DEVICES", ("cpu",) if products else ())
    x, weight = randn(3, 5, dim).requires_grad_(), randn(3, 5, dim)
    fast, dense = (rotation(dim, t)(x) for t in ("fast", "dense"))
    close(fast, dense, 1e-12)
    close(grads((fast * weight).sum(), [x]), grads((dense * weight).sum(), [x]), 1e-12)


@pytest.mark.parametrize("dim", [768, 2048])
def test_a_compiled_rotation_has_products_and_sums(dim: int) -> None:
    torch._dynamo.reset()
    rotate = rotation(dim, "fast")
    x, weight = randn(5, dim).requires_grad_(), randn(5, dim)
    y = torch.compile(rotate, backend="aot_eager", fullgraph=True)(x)
    close(y, rotate(x), 1e-12)
    close(grads((y * weight).sum(), [x]), grads((rotate(x) * weight).sum(), [x]), 1e-12)


def test_the_input_of_a_rotation_is_left_alone_and_may_be_strided() -> None:
    x = torch.randn(2, 64, 6, dtype=torch.float64).transpose(1, 2)
    before = x.clone()
    y = rotation(64, "fast")(x)
    close(x, before, 0.0)
    close(y, x @ hadamard(64), 1e-12)


@pytest.mark.parametrize("transform", ["dense", "fast"])
@pytest.mark.parametrize("width", [1024, 96])
@pytest.mark.parametrize("compiling", [False, True])
def test_a_rotation_in_bfloat16_sums_in_float32(
    transform: Any, width: int, compiling: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also as in a graph, which has no butterflies; the gradient is rounded once, to bf16."""
    monkeypatch.setattr("torch.compiler.is_compiling", lambda: compiling)
    rotation, n = Rotation(width, transform), block(width)
    x = torch.randn(64, width).bfloat16().requires_grad_()
    slope = torch.randn(64, width).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        y = rotation(x)
    (g,) = grads((y * slope).sum(), [x])
    assert (y.dtype, g.dtype) == (torch.float32, torch.bfloat16)
    want, of_slope = ((z.double().view(-1, n) @ hadamard(n)).view(y.shape) for z in (x, slope))
    close(y.double(), want, 1e-5)
    assert (g - of_slope).abs().max() < 2**-7 * 4.5  # values below 4.5; twice if n^-1/2 is no power


def test_a_rotation_has_no_state_in_checkpoints() -> None:
    assert Rotation(64, "dense").state_dict() == {}
