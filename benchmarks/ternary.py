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

from benchmarks.timing import turns
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
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", 2)))
    torch.manual_seed(0)
    kernels = library()
    path = "none: no compiler" if kernels is None else kernels.name
    abilities = torch.cpu.get_capabilities()
    print(f"{abilities.get('cpu_name')}, kernel path: {path}, threads {torch.get_num_threads()}")
    return {
        "cpu": abilities.get("cpu_name"),
        "features": [k for k in ("avx2", "avx512_vnni", "avx512_bf16", "amx_int8") if has(k)],
        "kernel": path,
        "threads": torch.get_num_threads(),
        "load": os.getloadavg()[0],
        "small": SMALL,
        "products": products(),
        "decoding": decoding(),
        "training": training(),
    }


def has(feature: str) -> bool:
    """Whether this CPU has an instruction set."""
    return bool(torch.cpu.get_capabilities().get(feature))


@torch.no_grad()
def products() -> dict[str, dict[str, float]]:
    """Median seconds of a product by shape m × k × n and arithmetic."""
    print("\nmilliseconds of a product m × k × n")
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
        rows[f"{m}x{k}x{n}"] = seconds = turns(rivals, rounds=ROUNDS, warmup=1)
        print(
            f"{m}x{k}x{n:<8}" + "".join(f"{name} {1e3 * s:9.3f}  " for name, s in seconds.items())
        )
    return rows


@torch.no_grad()
def decoding() -> dict[str, Any]:
    """Median seconds of a token by model and part, the ratios to float32, and resident bytes."""
    print(f"\ndecoding, one stream: dim {DIM}, depth {DEPTH}, vocabulary {VOCAB}")
    shape = Model(dim=DIM, depth=DEPTH, heads=HEADS, max_len=2048, head_transform=False)
    chosen = ["mixer=retnet", "norm=none", "ffn=mlp", "position=none", "quant=bitnet158"]
    ternary = decoder(shape, chosen)
    twin = decoder(shape, [*chosen[:-1], "norm=layernorm", "quant=none"])
    models = {"packed": packed(ternary).eval(), "fp32": twin, "bf16": decoder_like(twin)}
    del ternary
    rows: dict[str, Any] = {}
    for part in ("body", "whole"):
        seconds = turns(
            {name: stream(model, part) for name, model in models.items()}, rounds=ROUNDS, warmup=1
        )
        rows[part] = {name: s / TOKENS for name, s in seconds.items()}
        rows[f"{part}, times fp32"] = {n: seconds["fp32"] / s for n, s in seconds.items()}
        print(f"{part:<6}", end="")
        for name, each in rows[part].items():
            print(f"{name} {1e3 * each:8.2f} ms ({rows[part]['fp32'] / each:.2f} ×)  ", end="")
        print(flush=True)
    rows["bytes"] = {
        name: {"body": resident_bytes(model.backbone.blocks), "whole": resident_bytes(model)}
        for name, model in models.items()
    }
    print("MB of the body: ", {n: round(b["body"] / 1e6, 1) for n, b in rows["bytes"].items()})
    return rows


def decoder(shape: Model, chosen: list[str]) -> Any:
    """A decoder in evaluation mode."""
    torch.manual_seed(0)
    factories = choose(plain(compose([*chosen, "adapter=none"])))
    return build_model(shape, factories, vocab_size=VOCAB, causal=True).eval()


def decoder_like(model: LanguageModel) -> Any:
    """A copy in bfloat16."""
    return copy.deepcopy(model).to(torch.bfloat16)


def stream(model: Any, part: str) -> Callable[[], None]:
    """A function that decodes TOKENS tokens: with the head, or with the blocks alone."""
    token = torch.zeros(1, 1, dtype=torch.long)
    index = torch.zeros(1, dtype=torch.long) if part == "whole" else torch.zeros(0).long()
    state = model(token.expand(1, 8), state=model.init_state(1), index=index).state

    @torch.no_grad()
    def run() -> None:
        nonlocal state
        for _ in range(TOKENS):
            state = model(token, state=state, index=index).state

    return run


def training() -> dict[str, Any]:
    """Median seconds of a training step by arithmetic, and the ratio of float32 to each."""
    print(f"\ntraining step: dim {WIDTH}, depth {LAYERS}, {BATCH} × {LENGTH} tokens")
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
    for name, each in seconds.items():
        print(f"{name:<30}{1e3 * each:9.1f} ms  {seconds['fp32'] / each:.2f} ×", flush=True)
    return {"seconds": seconds, "times fp32": {n: seconds["fp32"] / s for n, s in seconds.items()}}


def step_of(model: LanguageModel, ids: Tensor, *, half: bool) -> Callable[[], None]:
    """A function that takes a training step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    index = torch.arange(0, ids.numel(), 7)
    targets = ids.flatten()[index]

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            logits = model(ids, index=index).logits
        F.cross_entropy(logits.float(), targets).backward()
        optimizer.step()

    return step
