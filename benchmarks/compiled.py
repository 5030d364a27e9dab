"""A training step with `trainer.compile=true`, block by block, and what compiling takes.

The main job of `benchmarks.profile_step` with `simulate`, forward, backward and update; each line
is compiled anew, without torch's caches of earlier processes. OMP_NUM_THREADS sets the threads (2).
"""

from __future__ import annotations

import time
from typing import Any

import torch

from benchmarks.profile_step import BATCH, LENGTH, LINES, step_of
from benchmarks.timing import multiplies_bf16, set_threads, show, turns
from chimera.train.memory import keep_freed_memory

ROUNDS = 7


def main() -> dict[str, Any]:
    """Time the steps; print and return seconds by line."""
    threads = set_threads()
    keep_freed_memory()
    torch._inductor.config.force_disable_caches = True
    rows: dict[str, dict[str, float]] = {}
    for name in ("fp32", *["bf16"] * multiplies_bf16()):
        torch._dynamo.reset()
        plain, compiled = step_of(*LINES[name]), step_of(*LINES[name], compiled=True)
        start = time.perf_counter()
        compiled()
        first = time.perf_counter() - start
        seconds = turns({"plain": plain, "compiled": compiled}, rounds=ROUNDS)
        rows[name] = {"first": first, **seconds}
    show(rows, "seconds of a step")
    return {"rows": rows, "batch": BATCH, "length": LENGTH, "threads": threads}
