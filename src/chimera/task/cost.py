"""Measure a model's cost at one length: speed of training, latency of a forward pass, peak memory.

SAIDL Table 16: batch 1, five steps. Its latency is that of a forward pass, its throughput that of a
whole training step (1260 ms and 4096/803 s at 4096 tokens). Memory on a GPU is the allocator's
allocated and reserved memory. On a CPU it is the resident set of the process, which includes
weights and optimiser state.
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


def cost(model: nn.Module, length: int, vocab_size: int, at_once: int) -> dict[str, float]:
    """Measure `tokens_per_second` of training, `latency_ms` of a forward pass, and `peak_mb`.

    The tokens are random; the learning rate is 0, so the weights do not change.

    Args:
        model: a language model.
        length: tokens of the sequence; the batch is 1.
        vocab_size: V.
        at_once: largest number of logits in memory.
    """
    device = next(model.parameters()).device
    training = model.training
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

    _reset_peak(device)
    step_seconds = _median(step, device)
    memory = _peak(device)
    forward_seconds = _median(forward, device)
    model.train(training)
    latency = 1e3 * forward_seconds
    return {"tokens_per_second": length / step_seconds, "latency_ms": latency, **memory}


def _median(function: Callable[[], None], device: torch.device) -> float:
    """Median seconds of `STEPS` calls, after one warm-up call."""
    seconds = []
    for _ in range(STEPS + 1):
        start = time.perf_counter()
        function()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[1:])


def _reset_peak(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    elif sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):  # return the C library's free memory
            ctypes.CDLL(None).malloc_trim(0)
        with contextlib.suppress(OSError):  # reset the peak of the resident set
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
