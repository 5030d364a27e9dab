"""The Triton kernel of packed ternary weights equals torch's own path, bit for bit.

On a GPU the tests run the compiled kernel; on a CPU they run Triton's interpreter, where Triton is
installed (no CPU build of torch brings it).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.checkpoint import checkpoint

from chimera.ops import integer, packed, two_bits
from chimera.ops import kernels as ops_kernels
from chimera.quant.bitnet158 import BitNet158
from chimera.quant.bitnet_v2 import BitNetV2
from chimera.quant.hbit import HBit
from chimera.quant.ternary_weight import TernaryWeight
from tests.ops.interpreter import interpreted, needs_triton

on_gpu = torch.cuda.is_available() and torch.cuda.get_device_capability() >= ops_kernels.AMPERE
needs_gpu = pytest.mark.skipif(not on_gpu, reason="no GPU since Ampere here")
DEVICE = "cuda" if on_gpu else "cpu"
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
QUANTISERS = {
    "bitnet158": BitNet158(),
    "hbit": HBit(ste="lsq_learned", activations="per_token"),  # a scale per row
    "bitnet_v2": BitNetV2(),  # 4-bit codes
    "ternary_weight": TernaryWeight(activation_bits=8),
}


def round_to_bfloat16(patch: pytest.MonkeyPatch) -> None:
    """Round float32 to the nearest bfloat16, as a GPU does; the interpreter cuts bits off."""
    import triton.language as tl
    from triton.runtime import interpreter

    convert = interpreter._convert_float

    def rounded(x: Any, source: Any, target: Any, mode: Any) -> Any:
        if (source, target) != (tl.float32, tl.bfloat16):
            return convert(x, source, target, mode)
        return torch.tensor(x).bfloat16().view(torch.uint16).numpy()

    patch.setattr(interpreter, "_convert_float", rounded)


@pytest.fixture(scope="module")
def kernels() -> Iterator[ModuleType]:
    """The module, interpreted on a CPU."""
    name = "chimera.ops.packed_triton"
    if DEVICE == "cuda":
        yield import_module(name)
        return
    with pytest.MonkeyPatch.context() as patch:
        for module in interpreted(name):
            round_to_bfloat16(patch)
            yield module


def draw(m: int, n: int, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes of activations, with a row of zeros, and of a weight."""
    a = torch.randint(-128, 128, (m, k), dtype=torch.int8)
    a[m // 2 : m // 2 + 1] = 0
    return a.to(DEVICE), torch.randint(-1, 2, (n, k), dtype=torch.int8, device=DEVICE)


def by_torch(
    a: torch.Tensor, step: torch.Tensor, codes: torch.Tensor, scale: torch.Tensor,
    bias: torch.Tensor | None, dtype: torch.dtype,
) -> torch.Tensor:  # fmt: skip
    """The path without a kernel, from exact sums."""
    sums = (a.double() @ codes.double().T).to(torch.int32)
    y = sums * step * scale.flatten().float()
    return (y if bias is None else y + bias).to(dtype)


@needs_triton
@settings(max_examples=20)
@given(
    st.sampled_from([0, 1, 2, 15, 16, 17, 33, 65]), st.integers(1, 140), st.integers(1, 700),
    st.booleans(),
)  # fmt: skip
def test_sums_are_exact(kernels: ModuleType, m: int, n: int, k: int, largest: bool) -> None:
    a, codes = draw(m, n, k)
    if largest:
        a.fill_(-128)
        codes.fill_(1)
    else:
        a = a.mT.contiguous().mT  # columns are neighbours in memory
    sums = kernels.product(a, two_bits.pack(codes))
    assert sums.dtype == torch.int32
    assert torch.equal(sums.double(), a.double() @ codes.double().T)
    assert torch.equal(kernels.unpacked(two_bits.pack(codes), k), codes)


@needs_triton
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [False, True])
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize(("m", "n", "k"), [(1, 37, 131), (17, 16, 128), (70, 131, 33)])
def test_scales_are_those_of_torch_to_the_last_bit(
    kernels: ModuleType, m: int, n: int, k: int, with_bias: bool, rows: bool, dtype: torch.dtype
) -> None:
    a, codes = draw(m, n, k)
    step = torch.rand(m, 2, device=DEVICE)[:, :1] / 127
    scale = torch.rand((n, 1) if rows else (), device=DEVICE).to(dtype)
    bias = torch.randn(2 * n, device=DEVICE).to(dtype)[::2] if with_bias else None
    got = kernels.scaled(a, step, two_bits.pack(codes), scale, bias, dtype)
    want = by_torch(a, step, codes, scale, bias, dtype)
    assert got.dtype == dtype
    assert torch.equal(got, want)
    row = torch.zeros(n, device=DEVICE, dtype=dtype) if bias is None else bias
    assert torch.equal(got[m // 2], row)  # the row of zeros


@needs_triton
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", QUANTISERS)
def test_a_layer_has_the_bits_of_codes_of_one_byte_and_keeps_none(
    name: str, dtype: torch.dtype, kernels: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = QUANTISERS[name].linear(131, 37, bias=True, role="up").eval().to(DEVICE)
    monkeypatch.setattr(packed, "library", lambda: None)
    monkeypatch.setattr(integer, "_cpu_multiplies_int8", lambda: True)
    x = torch.randn(3, 7, 131, device=DEVICE)
    x[1, 2:] = 0  # padding
    for tokens in (x, x[:0], x[0, 0], torch.cat([x] * 4)):
        with torch.no_grad(), torch.autocast(DEVICE, dtype, enabled=dtype != torch.float32):
            monkeypatch.setattr(packed, "gpu", lambda device, *_: None)
            plain = layer.packed()
            want = plain(tokens)
            calls: list[Any] = []
            monkeypatch.setattr(packed, "gpu", lambda device, *_: calls.append(device) or kernels)  # noqa: B023
            small = layer.packed()
            got = small(tokens)
        many = tokens.numel() > 131 * kernels.FEW
        assert len(calls) == 1 + many  # asked for the kernel of few tokens, then for codes
        assert got.dtype == want.dtype == dtype
        assert got.shape == (*tokens.shape[:-1], 37)
        assert torch.equal(got, want)
        assert (plain.codes is None, small.codes is None) == (False, True)


@needs_triton
def test_what_the_kernel_does_not_compute_stays_with_torch(
    kernels: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed, "gpu", lambda device, *_: kernels)
    a, codes = draw(2, 3, 5)
    step, bits = torch.ones(2, 1, device=DEVICE), two_bits.pack(codes)
    scale = torch.ones((), device=DEVICE)
    assert packed.scaled(a, step, bits, scale, None, torch.float32) is not None
    assert packed.scaled(a, step, bits, scale.double(), None, torch.float32) is None
    assert packed.scaled(a, step, bits, scale, None, torch.float64) is None
    monkeypatch.setattr(packed, "WIDEST", 5)
    assert packed.scaled(a, step, bits, scale, None, torch.float32) is None


@needs_triton
@pytest.mark.slow
def test_the_largest_sums_have_room(kernels: ModuleType) -> None:
    """Sums of the widest layer, −64 times as large in the kernel, are in 32 bits."""
    a = torch.full((1, packed.WIDEST - 1), -128, dtype=torch.int8, device=DEVICE)
    codes = torch.ones(2, packed.WIDEST - 1, dtype=torch.int8, device=DEVICE)
    codes[1] = -1
    sums = kernels.product(a, two_bits.pack(codes))
    assert sums.flatten().tolist() == [-128 * (packed.WIDEST - 1), 128 * (packed.WIDEST - 1)]


@needs_triton
def test_wrong_sums_and_failures_are_found_before_use(
    kernels: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = torch.device(DEVICE)
    assert kernels.fault(device) is None

    def wrong(a: torch.Tensor, *_: object) -> torch.Tensor:
        return torch.zeros(len(a), 35, device=device)

    monkeypatch.setattr(kernels, "scaled", wrong)
    assert kernels.fault(device) == "wrong sums of 3 x 300 x 35 codes"


class Fake(ModuleType):
    """Stands for `packed_triton`."""

    reason: str | None = None
    error = ""

    def fault(self, device: torch.device) -> str | None:
        assert torch.is_grad_enabled()
        assert not torch.is_inference_mode_enabled()
        (torch.ones(3, requires_grad=True).exp().square()).sum().backward()  # saves numbers
        if self.error:
            raise RuntimeError(self.error)
        return self.reason


@pytest.mark.parametrize(
    ("changed", "serves"),
    [
        ({}, True),
        ({"CHIMERA_KERNELS": "0"}, False),
        ({"capability": (7, 5)}, False),
        ({"hip": "6.4"}, False),
        ({"triton": None}, False),
        ({"reason": "wrong sums"}, False),
        ({"error": "Failed to find C compiler.\nPlease specify one"}, False),
    ],
)
def test_where_it_serves(
    changed: dict[str, Any], serves: bool, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    module = Fake("kernels")
    module.reason = changed.get("reason")
    module.error = changed.get("error", "")
    monkeypatch.setenv("CHIMERA_KERNELS", changed.get("CHIMERA_KERNELS", "1"))
    monkeypatch.setattr(torch.version, "hip", changed.get("hip"))
    capability = changed.get("capability", (8, 0))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(ops_kernels, "find_spec", lambda name: changed.get("triton", "here"))
    monkeypatch.setattr(ops_kernels, "import_module", lambda name: module)
    decide = ops_kernels.gpu.__wrapped__
    with torch.inference_mode():  # whoever asks first
        assert decide(torch.device("cuda:0"), *packed.KERNELS) is (module if serves else None)
    assert decide(torch.device("cpu"), *packed.KERNELS) is None
    assert [record.getMessage() for record in caplog.records] == [
        f"packed layers multiply codes of one byte: Triton kernel on cuda:0: {reason}"
        for reason in [module.reason, module.error and "RuntimeError: Failed to find C compiler."]
        if reason
    ]  # fmt: skip


def test_asked_in_a_block_that_is_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the comparison saves for its gradients is none of the block's."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(ops_kernels, "find_spec", lambda name: "here")
    monkeypatch.setattr(ops_kernels, "import_module", lambda name: Fake("kernels"))
    decide = cache(ops_kernels.gpu.__wrapped__)

    def block(x: torch.Tensor) -> torch.Tensor:
        assert decide(torch.device("cuda:0"), *packed.KERNELS) is not None
        return x.sin()

    x = torch.ones(3, requires_grad=True)
    checkpoint(block, x, use_reentrant=False).sum().backward()
    assert x.grad is not None


@needs_triton
@needs_gpu
def test_on_a_gpu_packed_layers_use_it() -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    assert ops_kernels.gpu(device, *packed.KERNELS) is not None
    layer = BitNet158().linear(256, 512, bias=False, role="up").eval().to(device)
    small, x = layer.packed(), torch.randn(5, 256, device=device)
    with torch.no_grad():
        torch.testing.assert_close(small(x), layer(x), rtol=1e-4, atol=1e-4)
    assert small.codes is None
