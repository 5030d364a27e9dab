"""Time and profile a step, called by a loop or by Lightning's Trainer.

After warm-up the job says that it is ready. Then steps are timed for two seconds, with one wait at
the end, so that host and device overlap as in training, and one or two are profiled.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.callbacks import Callback
from torch.profiler import ProfilerActivity, profile

from benchmarks.gpu.job import Setting

SECONDS, FEWEST, LARGEST = 2.0, 5, 12
WAITS = ("cudaStreamSynchronize", "cudaEventSynchronize")


class Meter:
    """Counts calls of `tick`, one before each step, and measures between them.

    Args:
        setting: of the job.
        warmup: steps before the job is ready.
        profiled: number of profiled steps.
    """

    def __init__(self, setting: Setting, warmup: int = 3, profiled: int = 2) -> None:
        self.setting = setting
        self.profiled = profiled
        self.row: dict[str, Any] = {}
        self._left = warmup
        self._stage = "warm-up"

    def tick(self) -> bool:
        """Whether all is measured."""
        self._left -= 1
        if self._stage == "warm-up" and self._left < 0:
            self.setting.ready()
            if self.setting.device == "cuda":
                torch.cuda.reset_peak_memory_stats()
            self._stage = "timing"
            self._steps = 0
            self._start = time.perf_counter()
        elif self._stage == "timing":
            self._steps += 1
            late = time.perf_counter() - self._start > SECONDS and self._steps >= FEWEST
            if late or self.setting.tiny:
                self._time()
        elif self._stage == "profiling" and self._left <= 0:
            self.setting.wait()
            self._profile.stop()
            self.row |= traced(self._profile, self.profiled)
            return True
        return False

    def _time(self) -> None:
        """End the timing, begin the profile."""
        self.setting.wait()
        self.row = {"seconds": (time.perf_counter() - self._start) / self._steps}
        if self.setting.device == "cuda":
            self.row["peak_gib"] = torch.cuda.max_memory_allocated() / 2**30
        on_device = ProfilerActivity.CUDA if self.setting.device == "cuda" else ProfilerActivity.CPU
        self._stage = "profiling"
        self._left = self.profiled
        self._profile = profile(activities=[on_device])
        self._profile.start()


def measured(setting: Setting, step: Callable[[], object]) -> dict[str, Any]:
    """Measure a step that is called in a loop."""
    meter = Meter(setting)
    while not meter.tick():
        step()
    return meter.row


class Measured(BaseException):
    """All steps are measured; its argument is the task."""


class InTrainer(Callback):
    """Measures the steps of a run, and ends it: its test and record take longer than the steps."""

    meter: Meter  # the job sets it: a callback is made from the configuration

    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        if self.meter.tick():
            raise Measured(pl_module)


def traced(prof: Any, steps: int) -> dict[str, Any]:
    """Kernels, copies, host waits and busy seconds of a step, and the largest kernels."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace.json"
        prof.export_chrome_trace(str(file))
        events = [e for e in json.loads(file.read_text())["traceEvents"] if "dur" in e]
    kernels = [e for e in events if e.get("cat") == "kernel"]
    copies = Counter(e["name"].split(" (")[0] for e in events if e.get("cat") == "gpu_memcpy")
    calls = Counter(e["name"] for e in events if e.get("cat") in ("cuda_runtime", "cuda_driver"))
    spent, busy, end = Counter[str](), 0.0, 0.0
    for event in sorted(kernels, key=lambda e: float(e["ts"])):
        spent[event["name"][:70]] += event["dur"]
        last = event["ts"] + event["dur"]
        busy += max(0.0, last - max(end, event["ts"]))
        end = max(end, last)
    return {
        "kernels": len(kernels) / steps,
        "copies": {name: number / steps for name, number in sorted(copies.items())},
        "waits": sum(calls[name] for name in WAITS) / steps,
        "launches": sum(n for name, n in calls.items() if "Launch" in name) / steps,
        "busy_seconds": busy / 1e6 / steps,
        "largest_ms": {name: t / 1e3 / steps for name, t in spent.most_common(LARGEST)},
    }
