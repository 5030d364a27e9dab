"""The rate at which this machine multiplies matrices, and the share of it that a run reaches.

MFU = FLOPs per token · tokens/s / rate                              (arXiv 2204.02311, appendix B)

The rate of a GPU is that of its data sheet: dense products, the precision of the run, without TF32
in fp32. Where there is none in `SHEET`, and on a CPU, the rate is measured: the fastest square
product within a quarter of a second, once per processor, threads, torch and precision. It is kept
in `peak_flops.json` of `CHIMERA_CACHE` (`~/.cache/chimera`). Later runs time a product or two and
keep the larger rate, so that a measurement on a busy machine does not stay. On a CPU whose half
precision is slower than its float32, the rate is that of float32.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import torch

from chimera.paths import cache_root
from chimera.rundir.atomic import write_json
from chimera.rundir.environment import processor

#: Dense FLOP/s of matrix products in half precision and in fp32, from the makers' data sheets.
SHEET = {
    "B200": (2.25e15, 7.5e13),
    "GH200": (9.89e14, 6.7e13),
    "H200": (9.89e14, 6.7e13),
    "H100 PCIe": (7.56e14, 5.1e13),
    "H100 NVL": (8.35e14, 6.0e13),
    "H100": (9.89e14, 6.7e13),
    "A100": (3.12e14, 1.95e13),
    "A10G": (7.0e13, 3.5e13),
    "L40S": (3.62e14, 9.16e13),
    "L4": (1.21e14, 3.03e13),
    "RTX 4090": (1.652e14, 8.26e13),
    "RTX 3090": (7.1e13, 3.56e13),
    "V100": (1.25e14, 1.57e13),
    "T4": (6.5e13, 8.1e12),
}
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
#: Seconds of the first measurement, and of those that only confirm it.
FIRST = 0.25
AGAIN = 0.03


def rate_of(device: torch.device, precision: str, *, keep: bool = True) -> float:
    """FLOP/s of matrix products of one process.

    Args:
        device: of the model.
        precision: fp32, bf16 or fp16.
        keep: write a rate that is larger than the known one to `peak_flops.json`.
    """
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
        for part, (half, single) in SHEET.items():
            if part in name:
                return single if precision == "fp32" else half
        key = f"{name}, torch {torch.__version__}, {precision}"
    else:
        threads = torch.get_num_threads()
        key = f"{processor()}, {threads} threads, torch {torch.__version__}, {precision}"
    rates = _read()
    known = float(rates.get(key, 0.0))
    rate = max(known, measure(device, DTYPES[precision], AGAIN if known else FIRST))
    if keep and rate > known:
        _write(key, rate)
    if device.type == "cpu" and precision != "fp32":  # part of the work is in float32 there
        return max(rate, rate_of(device, "fp32", keep=keep))
    return rate


@torch.no_grad()
def measure(device: torch.device, dtype: torch.dtype, seconds: float) -> float:
    """FLOP/s of the fastest square product of 512, 1024 or 2048 rows in about so many seconds."""
    best = 0.0
    size = 512
    began = time.perf_counter()
    while True:
        a = torch.ones(size, size, dtype=dtype, device=device)
        out = torch.empty_like(a)
        spent = 0.0
        for _ in range(3):
            start = time.perf_counter()
            torch.mm(a, a, out=out)
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            spent = time.perf_counter() - start
            best = max(best, 2 * size**3 / spent)
            if time.perf_counter() - began + spent > seconds:
                return best
        if 8 * spent < seconds / 4 and size < 2048:
            size *= 2


def _file() -> Path:
    return cache_root() / "peak_flops.json"


def _read() -> dict[str, Any]:
    try:
        rates = json.loads(_file().read_text())
    except (OSError, ValueError):
        return {}
    found = rates.items() if isinstance(rates, dict) else ()
    return {key: value for key, value in found if isinstance(value, float)}


def _write(key: str, rate: float) -> None:
    try:
        _file().parent.mkdir(parents=True, exist_ok=True)
        write_json(_file(), {**_read(), key: rate})
    except OSError:  # no home to write to: the next run measures again
        return
