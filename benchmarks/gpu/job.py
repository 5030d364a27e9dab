"""One job, as the process that `benchmarks.gpu` starts, and what all jobs share."""

from __future__ import annotations

import contextlib
import importlib
import os
import statistics
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class Setting:
    """Where a job measures.

    Args:
        device: cuda or cpu.
        tiny: shapes that take seconds on a CPU; their numbers mean nothing.
        prepared, go: events: this job could measure, and it may.
    """

    device: str
    tiny: bool
    prepared: Any
    go: Any

    def ready(self) -> None:
        """Say that all is prepared, and wait until the others are quiet."""
        self.wait()
        self.prepared.set()
        self.go.wait()

    def wait(self) -> None:
        """Wait until the device has done what it was given."""
        if self.device == "cuda":
            torch.cuda.synchronize()

    def autocast(self, precision: str) -> torch.autocast:
        """The context of fp32, bf16 or fp16 on this device."""
        half = HALF.get(precision, torch.bfloat16)
        return torch.autocast(self.device, half, enabled=precision != "fp32")

    def median(self, call: Callable[[], object], rounds: int = 7) -> float:
        """Median seconds of a call, until the device has done it, after two more calls."""
        seconds = []
        for _ in range(2 + (1 if self.tiny else rounds)):
            self.wait()
            start = time.perf_counter()
            call()
            self.wait()
            seconds.append(time.perf_counter() - start)
        return statistics.median(seconds[2:])

    def captured(self, step: Callable[[], object]) -> Callable[[], object]:
        """A function that replays a call as one CUDA graph; on a CPU, the call."""
        if self.device != "cuda":
            return step
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                step()
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.empty_cache()  # what the calls before it held
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        return graph.replay


def reason(error: BaseException) -> str:
    """An error in one line."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' '.join(lines[:1])[:300]}"


def work(name: str, setting: Setting, results: Any) -> None:
    """Measure a job, in silence, and put its row into the queue."""
    part, _, label = name.partition(" ")
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)
        try:
            row = importlib.import_module(f"benchmarks.gpu.{part}").main(setting, label)
        except Exception as error:  # noqa: BLE001 - whatever it is, the row says so
            row = {"error": reason(error), "trace": traceback.format_exc()[-1500:].splitlines()}
        results.put(row)
