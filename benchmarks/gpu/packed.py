"""A layer with packed ternary weights at 4096 × 4096 beside dense layers, in a CUDA graph.

    packed      the layer of an export: RMSNorm, grid, product on two-bit codes, scales
    product     its product alone, from ready codes
    bf16        torch's dense layer with the same weights
    gemlite     its kernels of two-bit weights, without a norm: bf16 inputs, and inputs of 8 bits

Calls go round copies of the layer that exceed the cache, as the layers of a model do. That the
sums are exact is tested (tests/ops/test_packed_triton.py).
"""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import torch
from torch import nn

from benchmarks.gpu.job import Setting, reason
from chimera.ops import packed as products
from chimera.ops.grid import rms_codes
from chimera.quant.bitnet158 import BitNet158

WIDTH, TOKENS, EPS = 4096, (1, 16, 64, 512), 1e-6
#: Tokens up to which the product has a kernel that also scales (`ops.packed_triton.FEW`).
MOST = 64
#: Four times the cache.
CACHES = 200 * 2**20


@torch.inference_mode()
def main(setting: Setting, label: str) -> dict[str, Any]:
    """Microseconds of each layer by number of tokens."""
    width, numbers = (64, (1, 3)) if setting.tiny else (WIDTH, TOKENS)
    torch.manual_seed(0)
    layer: Any = BitNet158(activation_bits=8).linear(width, width, bias=False, role="up").eval()
    layers = gemlite(setting, layer.packed()) if label else ours(setting, layer.packed())
    graphs = {
        (m, name): graphed(setting, name, one, m) for m in numbers for name, one in layers.items()
    }
    setting.ready()
    rows: dict[str, dict[str, Any]] = {str(m): {} for m in numbers}
    for (m, name), (replay, calls) in graphs.items():
        rows[str(m)][name] = 1e6 * setting.median(replay) / calls if calls else replay
    return rows


def ours(setting: Setting, packed: Any) -> dict[str, Any]:
    """Our layer and the dense one."""
    dense = nn.Linear(packed.shape[1], packed.shape[0], bias=False, dtype=torch.bfloat16)
    dense.weight.copy_(packed.weight)
    packed = packed.to(setting.device)
    return {"packed": packed, "product": packed, "bf16": dense.to(setting.device)}


def gemlite(setting: Setting, packed: Any) -> dict[str, Any]:
    """The library's layers."""
    from gemlite import helper

    codes = packed.rows(0, packed.shape[0]).to(setting.device, torch.bfloat16)
    makers = {"gemlite": helper.A16W158_INT, "gemlite int8": helper.A8W158_INT_dynamic}
    scale = packed.scale.flatten()[:1]
    return {n: make(dtype=torch.bfloat16).from_weights(codes, scale) for n, make in makers.items()}


def graphed(setting: Setting, name: str, module: Any, m: int) -> tuple[Any, int]:
    """A graph of calls of copies of the layer, and their number; or the error, and 0."""
    width = 64 if setting.tiny else WIDTH
    x = torch.randn(m, width, device=setting.device, dtype=torch.bfloat16)
    copies = 2 if setting.tiny else int(CACHES / width**2 / (2.0 if name == "bf16" else 0.25)) + 1
    codes, step, _ = rms_codes(x.float(), 8, EPS)
    calls: list[Any] = []
    try:
        for one in [module, *(copy.deepcopy(module) for _ in range(copies - 1))]:
            calls.append(partial(one, x))
            if name == "product" and m > MOST:
                calls[-1] = partial(products.product, codes, one.bits)
            elif name == "product":
                given = (codes, step, one.bits, one.scale, None, x.dtype)
                calls[-1] = partial(products.scaled, *given)
        return setting.captured(lambda: [call() for call in calls]), copies
    except Exception as error:  # noqa: BLE001 - a layer that fails says so, and the others go on
        return reason(error), 0
