"""A training step with `trainer.compile=true`, block by block, and what compiling takes.

The main job of `benchmarks.profile_step` with `simulate`, forward, backward and update; each line
is compiled anew, without torch's caches of earlier processes. OMP_NUM_THREADS sets the threads (2).
"""

from __future__ import annotations

import os
import time
from typing import Any

import torch

from benchmarks.profile_step import BATCH, LENGTH, LINES, step_of
from benchmarks.timing import turns
from chimera.train.malloc_tuning import keep_freed_memory

ROUNDS = 7


def main() -> dict[str, Any]:
    """Time the steps; print and return seconds by line."""
    threads = int(os.environ.get("OMP_NUM_THREADS", 2))
    torch.set_num_threads(threads)
    keep_freed_memory()
    torch._inductor.config.force_disable_caches = True
    half = torch.cpu.get_capabilities()
    rows: dict[str, dict[str, float]] = {}
    for name in ("fp32", "bf16"):
        if name.startswith("bf16") and not (half.get("avx512_bf16") or half.get("amx_bf16")):
            continue
        torch._dynamo.reset()
        plain, compiled = step_of(*LINES[name]), step_of(*LINES[name], compiled=True)
        start = time.perf_counter()
        compiled()
        first = time.perf_counter() - start
        seconds = turns({"plain": plain, "compiled": compiled}, rounds=ROUNDS)
        rows[name] = {"first": first, **seconds}
        print(
            f"{name:<20} plain {1e3 * seconds['plain']:.0f} ms, compiled"
            f" {1e3 * seconds['compiled']:.0f} ms ({seconds['plain'] / seconds['compiled']:.2f} ×),"
            f" first step {first:.0f} s",
            flush=True,
        )
    return {"rows": rows, "batch": BATCH, "length": LENGTH, "threads": threads}
