"""Time ternary products, decoding with packed weights, and ternary training, as ratios in one run.

1. Products of 8-bit activations with ternary weights: float32, bfloat16, torch._int_mm, and the
   kernel of `ops.packed` on packed weights.
2. One stream's decoding: a ternary decoder with packed weights, its twins in float32 and bfloat16.
   The body (blocks only) and the whole model with its vocabulary; bytes resident.
3. A training step of a ternary encoder by `quant.compute`, and of its float32 twin.

    python -m benchmarks ternary                            whole
    CHIMERA_BENCH_SMALL=1 python -m benchmarks ternary      a tenth of them, to see that it works
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.parts import continuation, update
from benchmarks.timing import has, set_threads, show, turns
from chimera.config.compose import compose, plain
from chimera.config.settings import Model
from chimera.model.assemble import build_model, choose
from chimera.model.language import LanguageModel
from chimera.ops import packed as kernels
from chimera.ops import two_bits
from chimera.ops.native import library
from chimera.quant.shared.packing import packed, resident_bytes

SMALL = os.environ.get("CHIMERA_BENCH_SMALL") == "1"
SHAPES = [(1, 2048, 2048), (128, 2048, 2048), (2048, 256, 1024), (2048, 768, 3072)]
DIM, DEPTH, HEADS, VOCAB, TOKENS = 1024, 8, 16, 32000, 16
BATCH, LENGTH, WIDTH, LAYERS = 8, 128, 512, 2
#: Without VNNI torch._int_mm is a loop, and bf16 without its instructions nearly one: they take
#: seconds for larger products than this. Where bf16 has none, no training step is timed in it.
LARGEST_LOOP = 16 * 2048 * 2048
if SMALL:
    SHAPES, DIM, DEPTH, VOCAB, TOKENS = SHAPES[:1], 256, 2, 1000, 4
    BATCH, LENGTH, WIDTH, LAYERS = 2, 32, 64, 2
ROUNDS = 3 if SMALL else 7


def main() -> dict[str, Any]:
    """Run the three measurements and print them; return the contents of the results file."""
    threads = set_threads()
    torch.manual_seed(0)
    kernels = library()
    path = "none: no compiler" if kernels is None else kernels.name
    return {
        "cpu": torch.cpu.get_capabilities().get("cpu_name"),
        "features": [k for k in ("avx2", "avx512_vnni", "avx512_bf16", "amx_int8") if has(k)],
        "kernel": path,
        "threads": threads,
        "load": os.getloadavg()[0],
        "small": SMALL,
        "products": products(),
        "decoding": decoding(),
        "training": training(),
    }


@torch.no_grad()
def products() -> dict[str, dict[str, float]]:
    """Median seconds of a product by shape m × k × n and arithmetic."""
    rows = {}
    for m, k, n in SHAPES:
        a = torch.randint(-127, 128, (m, k), dtype=torch.int8)
        c = torch.randint(-1, 2, (n, k), dtype=torch.int8)
        x, w, half_x, half_w = a.float(), c.float(), a.bfloat16(), c.bfloat16()
        bits = two_bits.pack(c)
        rivals: dict[str, Callable[[], object]] = {"fp32": partial(torch.mm, x, w.T)}
        if has("avx512_bf16") or m * k * n <= LARGEST_LOOP:
            rivals["bf16"] = partial(torch.mm, half_x, half_w.T)
        if has("avx512_vnni") or m * k * n <= LARGEST_LOOP:
            rivals["int8"] = partial(torch._int_mm, a, c.T)
        if library() is not None:
            rivals["packed"] = partial(kernels.product, a, bits)
        rows[f"{m}x{k}x{n}"] = turns(rivals, rounds=ROUNDS, warmup=1)
    show(rows, "seconds of a product m × k × n")
    return rows


@torch.no_grad()
def decoding() -> dict[str, Any]:
    """Median seconds of a token by model and part, the ratios to float32, and resident bytes."""
    shape = Model(dim=DIM, depth=DEPTH, heads=HEADS, max_len=2048, head_transform=False)
    chosen = ["mixer=retnet", "norm=none", "ffn=mlp", "position=none", "quant=bitnet158"]
    ternary = decoder(shape, chosen)
    twin = decoder(shape, [*chosen[:-1], "norm=layernorm", "quant=none"])
    models = {
        "packed": packed(ternary).eval(),
        "fp32": twin,
        "bf16": copy.deepcopy(twin).to(torch.bfloat16),
    }
    del ternary
    rows: dict[str, Any] = {}
    for part in ("body", "whole"):
        rivals = {n: continuation(m, TOKENS, body=part == "body") for n, m in models.items()}
        seconds = turns(rivals, rounds=ROUNDS, warmup=1)
        rows[part] = {name: s / TOKENS for name, s in seconds.items()}
        rows[f"{part}, times fp32"] = {n: seconds["fp32"] / s for n, s in seconds.items()}
    show(rows, f"seconds a token, one stream: dim {DIM}, depth {DEPTH}, vocabulary {VOCAB}")
    rows["bytes"] = {
        name: {"body": resident_bytes(model.backbone.blocks), "whole": resident_bytes(model)}
        for name, model in models.items()
    }
    show(rows["bytes"], "bytes")
    return rows


def decoder(shape: Model, chosen: list[str]) -> Any:
    """A decoder in evaluation mode."""
    torch.manual_seed(0)
    factories = choose(plain(compose([*chosen, "adapter=none"])))
    return build_model(shape, factories, vocab_size=VOCAB, causal=True).eval()


def training() -> dict[str, Any]:
    """Median seconds of a training step by arithmetic, and the ratio of float32 to each."""
    shape = Model(dim=WIDTH, depth=LAYERS, heads=8, max_len=LENGTH)
    ids = torch.randint(1000, (BATCH, LENGTH))
    parts = ["mixer=retnet", "ffn=mlp", "position=none"]
    lines = {
        "fp32": [*parts, "norm=layernorm", "quant=none"],
        **{
            f"ternary, {c}": [*parts, "norm=none", "quant=bitnet158", f"quant.compute={c}"]
            for c in ("simulate", "int8", *["bf16"] * has("avx512_bf16"))
        },
    }
    rivals: dict[str, Callable[[], None]] = {}
    for name, line in lines.items():
        torch.manual_seed(0)
        model = build_model(shape, choose(plain(compose(line))), vocab_size=1000, causal=False)
        rivals[name] = step_of(model, ids, half=False)
        if name in ("fp32", "ternary, int8") and has("avx512_bf16"):
            rivals[f"{name}, bf16 autocast"] = step_of(model, ids, half=True)
    seconds = turns(rivals, rounds=ROUNDS, warmup=1)
    found = {"seconds": seconds, "times fp32": {n: seconds["fp32"] / s for n, s in seconds.items()}}
    show(found, f"a training step: dim {WIDTH}, depth {LAYERS}, {BATCH} × {LENGTH} tokens")
    return found


def step_of(model: LanguageModel, ids: Tensor, *, half: bool) -> Callable[[], None]:
    """A function that takes a training step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    index = torch.arange(0, ids.numel(), 7)
    targets = ids.flatten()[index]

    def loss() -> Tensor:
        return F.cross_entropy(model(ids, index=index).logits.float(), targets)

    return update(optimizer, loss, half=half)
