"""What a model costs at one length: speed of training steps, latency of a pass, peak memory.

SAIDL Table 16: batch 1, five steps. Its latency column times a forward pass and its throughput a
whole step (1260 ms and 4096/803 s at 4096 tokens). On a GPU memory is what its allocator held and
reserved; on a CPU the resident set of the process, weights and optimiser state included.
"""

from __future__ import annotations

import contextlib
import ctypes
import resource
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

STEPS = 5


def work(
    model: nn.Module, length: int, vocab_size: int, at_once: int
) -> tuple[Callable[[], None], Callable[[], None]]:
    """A training step on random tokens, and a pass without gradients.

    The rate of the steps is 0: a model that was trained stays what it is.
    """
    device = next(model.parameters()).device
    ids, targets = torch.randint(vocab_size, (2, 1, length), device=device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0, weight_decay=0.0)

    def step() -> None:
        out = model.train()(ids, targets=targets.flatten(), at_once=at_once)
        (out.loss + sum(out.aux.values())).backward()
        optimizer.step()
        optimizer.zero_grad()

    @torch.no_grad()
    def forward() -> None:
        model.eval()(ids, targets=targets.flatten(), at_once=at_once)

    return step, forward


def cost(model: nn.Module, length: int, vocab_size: int, at_once: int) -> dict[str, float]:
    """`tokens_per_second` of training, `latency_ms` of a pass without gradients, `peak_mb`."""
    device, training = next(model.parameters()).device, model.training
    step, forward = work(model, length, vocab_size, at_once)
    _reset_peak(device)
    of_step = _median(step, device)
    memory = _peak(device)
    of_pass = _median(forward, device)
    model.train(training)
    return {"tokens_per_second": length / of_step, "latency_ms": 1e3 * of_pass, **memory}


def _median(once: Callable[[], None], device: torch.device) -> float:
    """Median seconds of `STEPS` runs after one that warms up."""
    seconds = []
    for _ in range(STEPS + 1):
        began = time.perf_counter()
        once()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds[1:])


def _reset_peak(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    elif sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):  # what the C library keeps for later
            ctypes.CDLL(None).malloc_trim(0)
        with contextlib.suppress(OSError):  # forget the highest resident set so far
            Path("/proc/self/clear_refs").write_text("5")


def _peak(device: torch.device) -> dict[str, float]:
    if device.type == "cuda":
        return {
            "peak_allocated_mb": torch.cuda.max_memory_allocated(device) / 2**20,
            "peak_mb": torch.cuda.max_memory_reserved(device) / 2**20,
        }
    status = Path("/proc/self/status")
    if status.exists():
        line = next(x for x in status.read_text().splitlines() if x.startswith("VmHWM"))
        return {"peak_mb": int(line.split()[1]) / 2**10}
    unit = 1 if sys.platform == "darwin" else 2**10
    return {"peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20}
