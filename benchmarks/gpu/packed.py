"""A layer with packed ternary weights at 4096 × 4096 beside dense layers, in a CUDA graph.

    packed      the layer of an export: RMSNorm, grid, product on two-bit codes, scales
    product     its product alone, from ready codes
    bf16        torch's dense layer with the same weights
    gemlite     its kernels of two-bit weights, without a norm: bf16 inputs, and inputs of 8 bits

Calls go round copies of the layer that exceed the cache, as the layers of a model do. Sums of the
kernel are compared with exact ones.
"""

from __future__ import annotations

import copy
from functools import partial
from typing import Any, Final

import torch
from torch import nn

from benchmarks.gpu.job import Setting, reason
from chimera.ops import packed as products
from chimera.ops.grid import rms_codes
from chimera.quant.bitnet158 import BitNet158

WIDTH, TOKENS, EPS = 4096, (1, 16, 64, 512), 1e-6
BITS: Final = 8
#: Four times the cache.
CACHES = 200 * 2**20


@torch.inference_mode()
def main(setting: Setting, label: str) -> dict[str, Any]:
    """Microseconds of each layer by number of tokens."""
    width, numbers = (64, (1, 3)) if setting.tiny else (WIDTH, TOKENS)
    torch.manual_seed(0)
    layer: Any = BitNet158(activation_bits=BITS).linear(width, width, bias=False, role="up").eval()
    layers = gemlite(setting, layer.packed()) if label else variants(setting, layer.packed())
    rows: dict[str, Any] = {}
    for m in numbers:
        x = torch.randn(m, width, device=setting.device, dtype=torch.bfloat16)
        rows[str(m)] = {name: graphed(setting, name, one, x) for name, one in layers.items()}
    setting.ready()
    found: dict[str, Any] = {}
    for tokens, row in rows.items():
        found[tokens] = {
            name: 1e6 * setting.median(replay) / calls if calls else replay
            for name, (replay, calls) in row.items()
        }
        if not label:
            x = torch.randn(int(tokens), width, device=setting.device)
            found[tokens]["exact"] = exact(layers["packed"], x)
    return found


def variants(setting: Setting, packed: Any) -> dict[str, Any]:
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


def graphed(setting: Setting, name: str, module: Any, x: torch.Tensor) -> tuple[Any, int]:
    """A graph of calls of copies of the layer, and their number; or the error, and 0."""
    try:
        module(x)
        codes, step, _ = rms_codes(x.float(), BITS, EPS)
        held = x.shape[-1] ** 2 * (2.0 if name == "bf16" else 0.25)
        number = 2 if setting.tiny else int(CACHES / held) + 1
        calls: list[Any] = []
        for one in [module, *(copy.deepcopy(module) for _ in range(number - 1))]:
            given = (codes, step, one.bits, one.scale, None, x.dtype) if name == "product" else ()
            calls.append(partial(products.scaled, *given) if given else partial(one, x))
        return setting.captured(lambda: [call() for call in calls]), number
    except Exception as error:  # noqa: BLE001 - a layer that fails says so, and the others go on
        return reason(error), 0


def exact(layer: Any, x: torch.Tensor) -> bool | None:
    """Whether the kernel's sums are those of integers; None where no kernel serves."""
    codes, _, _ = rms_codes(x.float(), BITS, EPS)
    one = torch.ones(len(x), 1, device=x.device)
    got = products.scaled(codes, one, layer.bits, one[0, 0], None, torch.float32)
    want = codes.double() @ layer.rows(0, layer.shape[0]).to(x.device).double().T
    return None if got is None else torch.equal(got.double(), want)
