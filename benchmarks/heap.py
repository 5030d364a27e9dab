"""A training step where glibc gives freed memory back to the system, and where it keeps it.

Lines of `benchmarks.profile_step`, each in processes of its own, because the bounds hold for a
whole process and what other models freed moves them. Times are those of the processor, by thread:
other programs come between two processes. OMP_NUM_THREADS sets the threads (2).
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import time
from typing import Any

import torch

from benchmarks.profile_step import LINES, step_of
from chimera.train.malloc_tuning import keep_freed_memory

WARMUP, STEPS = 3, 15


def main() -> dict[str, Any]:
    """Time each line in two processes; print and return seconds and faults of pages by step."""
    half = torch.cpu.get_capabilities()
    threads = int(os.environ.get("OMP_NUM_THREADS", 2))
    rows: dict[str, dict[str, Any]] = {}
    for name in LINES:
        if name.startswith("bf16") and not (half.get("avx512_bf16") or half.get("amx_bf16")):
            continue
        rows[name] = row = {}
        for kept in ("given back", "kept"):
            command = [sys.executable, "-m", "benchmarks.heap", name, kept, str(threads)]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            row[kept] = json.loads(done.stdout.splitlines()[-1])
        before, after = row["given back"], row["kept"]
        print(
            f"{name:<20} given back {1e3 * before['seconds']:.0f} ms"
            f" ({before['faults']:,.0f} faults),"
            f" kept {1e3 * after['seconds']:.0f} ms ({after['faults']:,.0f})",
            flush=True,
        )
    return {"rows": rows, "threads": threads}


def timed(name: str) -> dict[str, float]:
    """Median seconds of the processor by step and thread in this process, and faults of pages."""
    step = step_of(*LINES[name])
    for _ in range(WARMUP):
        step()
    before, seconds = resource.getrusage(resource.RUSAGE_SELF).ru_minflt, []
    for _ in range(STEPS):
        start = time.process_time()
        step()
        seconds.append((time.process_time() - start) / torch.get_num_threads())
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    return {"seconds": statistics.median(seconds), "faults": faults / STEPS}


if __name__ == "__main__":
    _, line, keep, number = sys.argv
    torch.set_num_threads(int(number))
    if keep == "kept":
        keep_freed_memory()
    print(json.dumps(timed(line)))
