"""What every part of the program is given, and small helpers that they share."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from chimera.ops import fused
from chimera.paths import ROOT

HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}
#: Folder that `benchmarks.gpu.pack` writes, for machines without a network.
PACKED = ROOT / ".gpu"


@dataclass(frozen=True)
class Setting:
    """Where and how long a part measures.

    Args:
        device: cuda or cpu.
        tiny: shapes that take seconds on a CPU; their numbers mean nothing.
        seconds: a part starts nothing new after them.
        began: time.monotonic() of the start.
    """

    device: str
    tiny: bool
    seconds: float
    began: float

    @property
    def left(self) -> float:
        """Seconds left of the part's share."""
        return self.seconds - (time.monotonic() - self.began)

    def autocast(self, precision: str) -> AbstractContextManager[Any]:
        """The context of fp32, bf16 or fp16 on this device."""
        if precision == "fp32":
            return nullcontext()
        return torch.autocast(self.device, HALF[precision])

    def wait(self) -> None:
        """Wait until the device has done what it was given."""
        if self.device == "cuda":
            torch.cuda.synchronize()


def harvest() -> Path | None:
    """The packed documents of the default corpus, if `benchmarks.gpu.pack` was run."""
    file = PACKED / "documents.json.gz"
    return file if file.is_file() else None


def median_seconds(
    setting: Setting, step: Callable[[], object], *, rounds: int, warmup: int
) -> float:
    """Median seconds of a step, from start until the device has done it."""
    seconds = []
    for number in range(warmup + rounds):
        setting.wait()
        start = time.perf_counter()
        step()
        setting.wait()
        if number >= warmup:
            seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


@contextmanager
def kernels(on: bool) -> Iterator[None]:
    """Use flash-linear-attention's kernels, where they are installed, or torch's paths only."""
    before = os.environ.get("CHIMERA_FUSED")
    os.environ["CHIMERA_FUSED"] = "1" if on else "0"
    fused._installed.cache_clear()
    try:
        yield
    finally:
        os.environ.pop("CHIMERA_FUSED")
        if before is not None:
            os.environ["CHIMERA_FUSED"] = before
        fused._installed.cache_clear()
