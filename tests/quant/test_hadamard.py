"""The rotation is orthogonal for any width, and both transforms give equal results."""

import pytest
import torch

from chimera.ops.hadamard import block
from chimera.quant.shared.inputs import Rotation
from tests.kit import close, grads
from tests.reference.quantisation import hadamard

WIDTHS = [1, 50, 192, 256]


def rotation(dim: int, transform: str) -> torch.nn.Module:
    return Rotation(dim, transform).double()


@pytest.mark.parametrize("dim", WIDTHS)
@pytest.mark.parametrize("transform", ["dense", "fast"])
def test_is_block_diagonal_hadamard(dim: int, transform: str) -> None:
    n = block(dim)
    expected = torch.block_diag(*[hadamard(n)] * (dim // n))
    matrix = rotation(dim, transform)(torch.eye(dim, dtype=torch.float64))
    close(matrix, expected, 1e-12)
    close(matrix @ matrix.T, torch.eye(dim, dtype=torch.float64), 1e-12)


def test_blocks_are_as_large_as_they_can_be() -> None:
    assert [block(d) for d in (1, 7, 8, 50, 192, 768)] == [1, 1, 8, 2, 64, 256]


@pytest.mark.parametrize("dim", [32, 192, 768])
def test_fast_equals_dense_with_gradients(dim: int) -> None:
    x = torch.randn(3, 5, dim, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(3, 5, dim, dtype=torch.float64)
    fast, dense = (rotation(dim, t)(x) for t in ("fast", "dense"))
    close(fast, dense, 1e-12)
    close(grads((fast * weight).sum(), [x]), grads((dense * weight).sum(), [x]), 1e-12)


def test_input_is_left_alone_and_may_be_strided() -> None:
    x = torch.randn(2, 64, 6, dtype=torch.float64).transpose(1, 2)
    before = x.clone()
    y = rotation(64, "fast")(x)
    close(x, before, 0.0)
    close(y, x @ hadamard(64), 1e-12)


@pytest.mark.parametrize("transform", ["dense", "fast"])
def test_bfloat16_sums_in_float32(transform: str) -> None:
    x = torch.randn(64, 1024).bfloat16()
    y = Rotation(1024, transform)(x)
    assert y.dtype == torch.bfloat16
    error = (y.double() - x.double() @ hadamard(1024)).abs().max()
    assert error < 2**-8 * 4.5  # one rounding of values below 4.5


def test_no_state_of_its_own_in_checkpoints() -> None:
    assert Rotation(64, "dense").state_dict() == {}
