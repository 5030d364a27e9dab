"""Products of codes are those of 64-bit integers, at sizes of 1 and with any stride of them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from chimera.ops import integer

SIZES = (1, 2, 3, 17, 64)


@pytest.mark.parametrize("dtype", [torch.int8, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("k", SIZES)
def test_products_are_exact(k: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(k)
    for m in SIZES:
        for n in SIZES:
            a = torch.randint(-127, 128, (m, k), dtype=torch.int8, generator=generator)
            c = torch.randint(-1, 2, (n, k), dtype=torch.int8, generator=generator)
            got = integer.product(a, c.to(dtype)).to(torch.int64)
            want = a.long() @ c.long().T
            # bfloat16 keeps 8 bits of a sum
            allowed = want.abs() // 256 if dtype == torch.bfloat16 else want * 0
            assert ((got - want).abs() <= allowed).all(), (m, n)


def test_one_token_may_have_any_stride() -> None:
    """torch hands back memory that nobody wrote to if a row stride is less than the width."""
    a = torch.randint(-127, 128, (1, 96), dtype=torch.int8)
    c = torch.randint(-1, 2, (40, 96), dtype=torch.int8)
    want = a.long() @ c.long().T
    for stride in (0, 1, 96, 1000):
        assert torch.equal(integer.product(a.as_strided((1, 96), (stride, 1)), c).long(), want)


def test_a_cpu_whose_products_overflow_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without VNNI oneDNN adds two products of a + 128 and b in 16 bits, and cuts off the sum."""

    def overflowing(a: Tensor, b: Tensor) -> Tensor:
        shifted, b = a.int() + 128, b.int()
        pairs = shifted.reshape(len(a), -1, 2, 1) * b.reshape(1, -1, 2, b.shape[1])
        return pairs.sum(2).clamp(-(2**15), 2**15 - 1).sum(1).int() - 128 * b.sum(0)

    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_vnni": True})
    for multiply, exact in ((lambda a, b: a.int() @ b.int(), True), (overflowing, False)):
        monkeypatch.setattr(torch, "_int_mm", multiply)
        assert integer._cpu_multiplies_int8.__wrapped__() is exact
