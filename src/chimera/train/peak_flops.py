"""The rate at which this machine multiplies matrices, and the share of it that a run reaches.

MFU = FLOPs per token · tokens/s / rate                              (arXiv 2204.02311, appendix B)

The rate of a GPU is that of its data sheet: dense products, the precision of the run, without TF32
in fp32. Lightning's table of data sheets is not used: it has the rates of sparse products for some
GPUs, twice the dense ones. Where there is none in `SHEET`, and on a CPU, the rate is that of the
fastest square product within a tenth of a second. On a CPU whose half precision is slower than its
float32, the rate is that of float32.
"""

from __future__ import annotations

import time

import torch

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
#: Seconds of a measurement.
SECONDS = 0.1


def rate_of(device: torch.device, precision: str) -> float:
    """FLOP/s of matrix products of one process.

    Args:
        device: of the model.
        precision: fp32, bf16 or fp16.
    """
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
        for part, (half, single) in SHEET.items():
            if part in name:
                return single if precision == "fp32" else half
    rate = measure(device, DTYPES[precision])
    if device.type == "cpu" and precision != "fp32":  # part of the work is in float32 there
        return max(rate, measure(device, torch.float32))
    return rate


@torch.no_grad()
def measure(device: torch.device, dtype: torch.dtype, seconds: float = SECONDS) -> float:
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
