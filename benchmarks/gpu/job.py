"""One job, as the process that `benchmarks.gpu` starts; its row is a JSON file."""

from __future__ import annotations

import importlib
import json
import statistics
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class Setting:
    """Where a job measures.

    Args:
        place: path of the job's files without a suffix; `.` measures at once.
        device: cuda or cpu.
        tiny: shapes that take seconds on a CPU; their numbers mean nothing.
    """

    place: Path
    device: str
    tiny: bool

    def ready(self) -> None:
        """Say that all is prepared, and wait until the others are quiet."""
        self.wait()
        self.place.with_suffix(".ready").touch()
        while not self.place.with_suffix(".go").exists():
            time.sleep(0.02)

    def wait(self) -> None:
        """Wait until the device has done what it was given."""
        if self.device == "cuda":
            torch.cuda.synchronize()

    def autocast(self, precision: str) -> torch.autocast:
        """The context of fp32, bf16 or fp16 on this device."""
        half = HALF.get(precision, torch.bfloat16)
        return torch.autocast(self.device, half, enabled=precision != "fp32")

    def median(self, call: Callable[[], object], rounds: int = 7, warmup: int = 2) -> float:
        """Median seconds of a call, until the device has done it."""
        seconds = []
        for number in range(warmup + (1 if self.tiny else rounds)):
            self.wait()
            start = time.perf_counter()
            call()
            self.wait()
            if number >= warmup:
                seconds.append(time.perf_counter() - start)
        return statistics.median(seconds)

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
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        return graph.replay


def reason(error: BaseException) -> str:
    """An error in one line."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' '.join(lines[:1])[:300]}"


def main(arguments: list[str]) -> int:
    """Measure; arguments are the place, the device, the job, and --tiny."""
    place, device, name, *rest = arguments
    part, _, label = name.partition(" ")
    try:
        module: Any = importlib.import_module(f"benchmarks.gpu.{part}")
        row = module.main(Setting(Path(place), device, "--tiny" in rest), label)
    except Exception as error:  # noqa: BLE001 - whatever it is, the row says so
        traceback.print_exc()
        row = {"error": reason(error)}
    Path(place).with_suffix(".json").write_text(json.dumps(row))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
