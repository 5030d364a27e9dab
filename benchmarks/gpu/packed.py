"""Layers with packed ternary weights: the Triton kernel, codes of one byte, dense twins.

Decoding (1 and 16 tokens) and prefill, at widths of decoders of one to eight billion parameters.
Each row has, for one layer:

    packed      the layer of an export: RMSNorm, grid, product on two-bit codes, scales
    one byte    the same layer with the kernel turned off: torch._int_mm on codes of one byte
    bf16, fp16  torch's dense layer with the same weights
    product, product one byte    the products alone, from ready codes

Each is timed as Python calls it, and as a CUDA graph, which leaves out the time of launching. Calls
go round copies of the layer that exceed the cache, as the layers of a model do. Results are
compared with the layer on the CPU, and the kernel's sums with exact ones.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor, nn

from benchmarks.gpu.presets import tried
from benchmarks.gpu.setting import Setting, median_seconds
from chimera.ops import packed as products
from chimera.ops.grid import rms_codes
from chimera.ops.integer import product
from chimera.quant.bitnet158 import BitNet158
from chimera.quant.shared.layers import TernaryLinear
from chimera.quant.shared.packed import PackedTernaryLinear
from chimera.quant.shared.packing import resident_bytes

SHAPES = ((2048, 2048), (4096, 4096), (4096, 14336))
TOKENS = (1, 16, 512, 4096)
#: Bytes of the copies of a layer as multiples of the cache, and their largest number.
CACHES, COPIES = 4, 256
ROUNDS, WARMUP = 10, 2
#: Grid of the layers, and eps of its norm.
BITS: Final = 8
EPS = 1e-6
#: Tokens compared with the CPU at the most: three of the largest tiles, the last in part.
COMPARED = 130
#: Share of codes that may fall to the other side of a tie.
MOVED = 1e-3


def main(setting: Setting) -> dict[str, Any]:
    """Measure each shape and number of tokens; `skipped` without CUDA."""
    if setting.device != "cuda":
        line = "no CUDA: the kernel is compiled for a GPU"
        print(f"packed: skipped, {line}")
        return {"skipped": line}
    device = torch.device("cuda", torch.cuda.current_device())
    if products.gpu(device) is None:
        return {"error": "the Triton kernel does not serve here (Triton, Ampere, CHIMERA_KERNELS)"}
    shapes, counts = (((256, 384),), (1, 17)) if setting.tiny else (SHAPES, TOKENS)
    rows = []
    for k, n in shapes:
        for m in counts:
            row: dict[str, Any] = {"k": k, "n": n, "m": m}
            if setting.left < 5:
                rows.append({**row, "error": "no time left"})
                continue
            rows.append(row | tried(lambda: measured(setting, m, k, n)))  # noqa: B023
            print(rows[-1], flush=True)
    wrong = [row for row in rows if row.get("against_cpu", {}).get("wrong")]
    found = {"rows": rows}
    return {**found, "error": f"{len(wrong)} rows differ from the CPU's"} if wrong else found


# Not `no_grad`: there, layers with the same input share its codes, and only the first makes them.
@torch.inference_mode()
def measured(setting: Setting, m: int, k: int, n: int) -> dict[str, Any]:
    """Times and bytes of a layer [k → n] on m tokens, by variant, and what `compared` says."""
    torch.manual_seed(0)
    layer = BitNet158(activation_bits=BITS).linear(k, n, bias=False, role="up").eval()
    assert isinstance(layer, TernaryLinear)
    x = torch.randn(m, k)
    row: dict[str, Any] = {"against_cpu": compared(setting, layer.packed(), x[:COMPARED])}
    for name, dtype in (("packed", torch.bfloat16), ("one byte", torch.bfloat16),
                        ("bf16", torch.bfloat16), ("fp16", torch.float16)):  # fmt: skip
        ours = name in ("packed", "one byte")
        module: nn.Module = layer.packed() if ours else dense(layer.packed(), dtype)
        module, inputs = module.to(setting.device), x.to(setting.device, dtype)
        with kernel(on=name != "one byte"):
            module(inputs)  # codes of one byte are made by the first call
            held = resident_bytes(module)
            modules = [module, *(copy.deepcopy(module) for _ in range(copies(setting, held) - 1))]
            calls: list[Callable[[], object]] = [partial(one, inputs) for one in modules]
            row[name] = {"bytes": held, **times(setting, calls)}
            if ours:
                calls = alone(modules, inputs, packed=name == "packed")
                row["product" if name == "packed" else "product one byte"] = times(setting, calls)
    return row


def compared(setting: Setting, layer: PackedTernaryLinear, x: Tensor) -> dict[str, Any]:
    """The device's results and those from the CPU's codes, summed exactly.

    A code within rounding of a tie may fall to the other side on the device, and moves each element
    of its token by one step and scale at most. What is farther away is `outside`.
    """
    there, y = copy.deepcopy(layer).to(setting.device), x.to(setting.device)
    codes, step, _ = rms_codes(x, BITS, EPS)
    flips = (rms_codes(y, BITS, EPS)[0].cpu().int() - codes).abs().sum(-1, keepdim=True)
    sums = codes.double() @ layer.rows(0, layer.shape[0]).double().T
    want = sums * step * layer.scale
    bound = 1e-5 + 1e-4 * want.abs() + 1.01 * flips * step * layer.scale
    outside = ((there(y).cpu() - want).abs() > bound).sum().item()
    one = torch.ones(len(x), 1, device=setting.device)
    got = products.scaled(codes.to(setting.device), one, there.bits, one[0, 0], None, torch.float32)
    exact = got is None or torch.equal(got.double().cpu(), sums)
    moved = flips.sum().item() / x.numel()
    return {
        "kernel": got is not None, "exact": exact, "outside": outside, "codes_moved": moved,
        "wrong": not exact or outside > 0 or moved > MOVED,
    }  # fmt: skip


def dense(layer: PackedTernaryLinear, dtype: torch.dtype) -> nn.Linear:
    """torch's layer with the same weights."""
    twin = nn.Linear(layer.shape[1], layer.shape[0], bias=False, dtype=dtype)
    twin.weight.copy_(layer.weight)
    return twin


def alone(modules: Sequence[nn.Module], x: Tensor, *, packed: bool) -> list[Callable[[], object]]:
    """The products of packed layers, from ready codes of x; the packed ones with scales."""
    codes, step, _ = rms_codes(x.float(), BITS, EPS)
    calls: list[Callable[[], object]] = []
    for one in modules:
        assert isinstance(one, PackedTernaryLinear)
        if packed:
            calls.append(partial(products.scaled, codes, step, one.bits, one.scale, None, x.dtype))
        else:
            calls.append(partial(product, codes, one.cached()))
    return calls


def copies(setting: Setting, held: int) -> int:
    """Number of layers of so many bytes that exceed the device's cache."""
    if setting.tiny or setting.device != "cuda":
        return 2
    cache = torch.cuda.get_device_properties(0).L2_cache_size
    return max(2, min(COPIES, -(-CACHES * cache // held)))


def times(setting: Setting, calls: list[Callable[[], object]]) -> dict[str, float]:
    """Median seconds of a call, from Python and, on a GPU, in a graph of all the calls."""
    rounds, warmup = (1, 1) if setting.tiny else (ROUNDS, WARMUP)

    def per_call(step: Callable[[], object]) -> float:
        return median_seconds(setting, step, rounds=rounds, warmup=warmup) / len(calls)

    def all_calls() -> None:
        for call in calls:
            call()

    seconds = {"seconds": per_call(all_calls)}
    if setting.device == "cuda":
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            all_calls()
        seconds["graph_seconds"] = per_call(graph.replay)
    return seconds


@contextmanager
def kernel(on: bool) -> Iterator[None]:
    """Use the Triton kernel, or codes of one byte."""
    before = os.environ.get("CHIMERA_KERNELS")
    if not on:
        os.environ["CHIMERA_KERNELS"] = "0"
    products.gpu.cache_clear()
    try:
        yield
    finally:
        os.environ.pop("CHIMERA_KERNELS", None)
        if before is not None:
            os.environ["CHIMERA_KERNELS"] = before
        products.gpu.cache_clear()
