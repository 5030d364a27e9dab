"""Two-bit packing and products of codes: exact sums, every path, the library on disk."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from chimera.ops import integer, native, packed, two_bits
from chimera.ops.grid import AWAY, rms_codes, to_codes

COMPILER = any(map(native.shutil.which, native.COMPILERS))
needs_compiler = pytest.mark.skipif(not COMPILER, reason="no C++ compiler here")


@pytest.fixture
def fresh() -> Iterator[None]:
    """The library is looked for anew, in the test and after it."""
    native.library.cache_clear()
    yield
    native.library.cache_clear()


@given(st.integers(1, 40), st.integers(1, 400))
def test_round_trip_is_exact(n: int, k: int) -> None:
    codes = torch.randint(-1, 2, (n, k), dtype=torch.int8)
    bits = two_bits.pack(codes)
    assert bits.shape == (n, 32 * -(-k // 128))
    assert torch.equal(two_bits.unpack(bits, k), codes)


@needs_compiler
@given(st.integers(0, 9), st.integers(1, 2500), st.integers(1, 70))
def test_sums_are_exact_on_every_path(m: int, k: int, n: int) -> None:
    library = native.library()
    assert library is not None
    best = library.path
    a = torch.randint(-128, 128, (m, k), dtype=torch.int8)
    codes = torch.randint(-1, 2, (n, k), dtype=torch.int8)
    if k % 2:  # the largest sums: 16 bits must not overflow before they are widened
        a.fill_(-128)
        codes.fill_(1)
    try:
        for library.path in range(best + 1):
            sums = packed.product(a, two_bits.pack(codes))
            assert sums is not None
            assert torch.equal(sums.double(), a.double() @ codes.double().T)
    finally:
        library.path = best


@needs_compiler
@given(
    st.integers(0, 70), st.integers(1, 300), st.integers(1, 40), st.sampled_from([None, 1e-6]),
    st.booleans(), st.sampled_from([4, 8]),
)  # fmt: skip
def test_the_fused_layer_is_grid_product_and_scale(
    m: int, k: int, n: int, eps: float | None, rows: bool, bits: int
) -> None:
    """A code at a tie may be rounded the other way: at most one step and one scale per row."""
    x, codes = torch.randn(m, k), torch.randint(-1, 2, (n, k), dtype=torch.int8)
    if m > 2:
        x[0] = 0
        x[1, 0] = float("inf")
    scale = torch.rand(n, 1) + 0.1 if rows else torch.tensor(0.3)
    bias = torch.randn(n)
    y = packed.linear(x, two_bits.pack(codes), scale, bias, bits=bits, eps=eps)
    assert y is not None
    a, step = to_codes(x, bits) if eps is None else rms_codes(x, bits, eps)[:2]
    want = (a.double() @ codes.double().T) * step.double() * scale.double().flatten() + bias
    if m > 2:
        assert y[1].isnan().all()
        y, want, step = y[2:], want[2:], step[2:]
    off = (y - want).abs()
    exact = off <= 1e-5 * (1 + want.abs())
    assert (off <= 1e-5 * (1 + want.abs()) + step * scale.flatten()).all()
    assert exact.float().mean() > 0.9 if exact.numel() else True


@needs_compiler
@pytest.mark.parametrize("eps", [None, 1e-6])
def test_the_fused_layer_sends_halves_where_the_grid_does(eps: float | None) -> None:
    x = torch.randint(-254, 255, (40, 200)) * 0.37 * (1 + 1e-7 * torch.randn(40, 200))
    x[:, 0] = 254 * 0.37
    codes, one = torch.randint(-1, 2, (9, 200), dtype=torch.int8), torch.ones(())
    y = packed.linear(x, two_bits.pack(codes), one, None, bits=8, eps=eps, nudge=AWAY)
    a, step = to_codes(x, 8, AWAY) if eps is None else rms_codes(x, 8, eps, AWAY)[:2]
    assert y is not None
    torch.testing.assert_close(y, (a.double() @ codes.double().T * step).float())


@needs_compiler
def test_only_the_users_own_files_are_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fresh: None
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    built = []
    original = native._build

    def counted(compiler: str, file: Path) -> None:
        built.append(file)
        if len(built) == 1:
            original(compiler, file)
            shutil.copy(file, tmp_path / "kept")
        else:  # building takes seconds
            file.unlink(missing_ok=True)  # its old contents are in use
            shutil.copy(tmp_path / "kept", file)

    monkeypatch.setattr(native, "_build", counted)
    assert native.library() is not None
    (file,) = (tmp_path / "chimera").glob("*.so")
    assert oct(file.stat().st_mode & 0o777) == "0o700"
    native.library.cache_clear()
    assert native.library() is not None
    assert built == [file]
    file.chmod(0o722)  # others may have written to it
    native.library.cache_clear()
    assert native.library() is not None
    assert built == [file] * 2
    (tmp_path / "chimera").chmod(0o777)
    native.library.cache_clear()
    assert native.library() is not None
    assert built[2].parent != file.parent
    assert os.listdir(tmp_path / "chimera") == [file.name]


def test_without_a_compiler_there_is_none(monkeypatch: pytest.MonkeyPatch, fresh: None) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    assert native.library() is None
    a, bits = torch.zeros(2, 5, dtype=torch.int8), two_bits.pack(torch.ones(3, 5, dtype=torch.int8))
    assert packed.product(a, bits) is None
    assert packed.linear(torch.zeros(2, 5), bits, torch.tensor(1.0), None, bits=8) is None


def test_a_compiler_that_fails_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fresh: None
) -> None:
    (tmp_path / "c++").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "c++").chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert native.library() is None


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
