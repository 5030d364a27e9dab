"""What the card gives: cost of a launch, bandwidth, rates of matrix products.

Floors of every step: kernels × cost of a launch on the host, bytes / bandwidth and FLOPs / rate on
the card. All numbers are of random data.
"""

from __future__ import annotations

import time
from typing import Any

import torch

from benchmarks.gpu.job import HALF, Setting

LAUNCHES = 2000


def main(setting: Setting, label: str) -> dict[str, Any]:
    """Microseconds, bytes per second and FLOPs per second."""
    size, device = 256 if setting.tiny else 8192, setting.device
    x, big = torch.randn(64, device=device), torch.randn(size * size * 8, device=device)  # 2 GiB
    copy = torch.empty_like(big)

    def adds() -> None:
        for _ in range(LAUNCHES):
            x.add_(1.0)

    replay = setting.captured(adds)
    setting.ready()
    start = time.perf_counter()
    adds()
    launch = (time.perf_counter() - start) / LAUNCHES  # the device works on them meanwhile
    return {
        "launch_us": 1e6 * launch,
        "kernel_in_graph_us": 1e6 * setting.median(replay) / LAUNCHES,
        "item_us": 1e6 * setting.median(lambda: x[0].item()),
        "copy_bytes_per_second": 2 * big.nbytes / setting.median(lambda: copy.copy_(big)),
        **{f"{name}_flops_per_second": rate(setting, name, size, size)
           for name in ("bf16", "fp16", "tf32", "fp32", "int8")},
        # A block of BERT-Base.
        **{f"bf16_768_{n}_flops_per_second": rate(setting, "bf16", 768, n) for n in (768, 3072)},
    }  # fmt: skip


def rate(setting: Setting, name: str, k: int, n: int) -> float:
    """FLOPs per second of [8192 k] × [k n], four at a time."""
    torch.backends.cuda.matmul.allow_tf32 = name == "tf32"
    rows = 256 if setting.tiny else 8192
    a, b = (torch.randn(shape, device=setting.device) for shape in ((rows, k), (n, k)))
    if name == "int8":
        a, b = (x.mul(40).clamp(-127, 127).to(torch.int8) for x in (a, b))
    a, b = (x.to(HALF.get(name, x.dtype)) for x in (a, b))
    product = torch._int_mm if name == "int8" else torch.mm
    seconds = setting.median(lambda: [product(a, b.T) for _ in range(4)])
    return 4 * 2 * rows * k * n / seconds
