"""Where a training step's time goes: matrix products, quantisers and norms, the ten largest others.

The main job (16 × 128 random tokens, forward, backward and update) by precision and
`quant.compute`, under torch's profiler. Each operation counts with the time that is its own,
without that of operations that it calls. «Distance» is the FLOPs of the products over their time,
as a share of the rate at which this machine multiplies large matrices
(`chimera.train.record`).
OMP_NUM_THREADS sets the threads (2).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from benchmarks.parts import update
from benchmarks.timing import multiplies_bf16, set_threads, show, turns
from chimera.config.compose import compose, plain
from chimera.model.compiled import compile_model
from chimera.ops.flops import Count
from chimera.optim.optimizer import build, groups
from chimera.train.build import build_task
from chimera.train.memory import keep_freed_memory
from chimera.train.record import rate_of

VOCAB, BATCH, LENGTH, STEPS = 4096, 16, 128, 5
MAIN = ["mixer=retnet", "norm=qdyt"]
LINES = {
    "fp32, no quantiser": ("fp32", [*MAIN, "quant=none"]),
    "fp32": ("fp32", [*MAIN, "quant=bitnet158"]),
    "fp32, int8": ("fp32", [*MAIN, "quant=bitnet158", "quant.compute=int8"]),
    "bf16, no quantiser": ("bf16", [*MAIN, "quant=none"]),
    "bf16": ("bf16", [*MAIN, "quant=bitnet158"]),
    "bf16, int8": ("bf16", [*MAIN, "quant=bitnet158", "quant.compute=int8"]),
}
#: Operations that multiply matrices.
PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::_int_mm")
LARGEST = 10


def main() -> dict[str, Any]:
    """Profile each line and print its shares."""
    threads = set_threads()
    keep_freed_memory()  # as a run does
    known = ("fp32", *["bf16"] * multiplies_bf16())
    lines = {name: line for name, line in LINES.items() if line[0] in known}
    steps = {name: step_of(*line) for name, line in lines.items()}
    seconds = turns(steps)
    rows = {}
    for name, step in steps.items():
        rows[name] = {"seconds": seconds[name], **shares(step, lines[name][0])}
    show(rows, "a step, and the shares of its time")
    for name, row in rows.items():
        show({"share": row["others"]}, f"{name}: the largest others")
    sizes = {"batch": BATCH, "length": LENGTH, "vocabulary": VOCAB, "steps": STEPS}
    return {"rows": rows, **sizes, "threads": threads}


def step_of(precision: str, overrides: list[str], *, compiled: bool = False) -> Callable[[], None]:
    """A function that takes a training step."""
    torch.manual_seed(0)
    task = build_task(plain(compose(overrides)), VOCAB)
    if compiled:
        compile_model(task.model)
    optimizer, _ = build(task.optim, groups(task.model, task.optim), 1000, fused=True)
    ids = torch.randint(VOCAB, (BATCH, LENGTH))
    index = torch.randperm(ids.numel())[: ids.numel() * 15 // 100].sort().values
    targets = ids.flatten()[index]

    def loss() -> Tensor:
        out = task.model(ids, index=index, targets=targets)
        return task.total_loss(out.loss, out.aux)

    return update(optimizer, loss, half=precision == "bf16")


def shares(step: Callable[[], None], precision: str) -> dict[str, Any]:
    """Share of the products, their distance from the machine's rate, the largest others."""
    with profile(activities=[ProfilerActivity.CPU]) as found:
        for _ in range(STEPS):
            step()
    own = {row.key: row.self_cpu_time_total / 1e6 / STEPS for row in found.key_averages()}
    calls = {row.key: row.count // STEPS for row in found.key_averages()}
    whole = sum(own.values())
    products = sum(own.get(name, 0.0) for name in PRODUCTS)
    with Count() as count:
        step()
    rate = rate_of(torch.device("cpu"), precision)
    others = sorted((name for name in own if name not in PRODUCTS), key=own.__getitem__)[::-1]
    return {
        "products": products / whole,
        "distance": count.products / products / rate,
        "flops": count.products,
        "others": {f"{name} ({calls[name]} ×)": own[name] / whole for name in others[:LARGEST]},
    }
