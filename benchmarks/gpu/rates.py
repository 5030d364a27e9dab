"""What a kernel costs on a card, and the step that follows.

    host  kernels · LAUNCH                                  one Python thread starts them all
    card  Σ max(bytes / bandwidth, FLOPs / rate) + START    of a kernel
    step  the larger of the two

LAUNCH, 25 µs, was fitted to bare steps on an H200 (docs/guide/gpu.md); rates are those of large
copies and products.
"""

from __future__ import annotations

import torch

from benchmarks.gpu.job import HALF

#: Seconds of the host for a kernel, and of the card to begin and end one.
LAUNCH, START = 25e-6, 1.5e-6
#: Bytes per second and FLOPs per second in half precision, as measured; of float32, float64 and
#: 8 bits, about what data sheets say.
CARDS = {"H100": (3.0e12, 798e12, 52e12, 50e12, 1000e12),
         "H200": (4.3e12, 790e12, 52e12, 50e12, 1000e12)}  # fmt: skip
#: Shares of them that a kernel of a step reaches.
COPY, PRODUCT = 0.85, 0.75


def seconds(card: str, moved: float, flops: float, dtype: torch.dtype) -> float:
    """The longer of moving the bytes and computing the products."""
    bandwidth, half, single, double, byte = CARDS[card]
    rate = PRODUCT * (half if dtype in HALF.values() else byte if dtype == torch.int8 else single)
    return max(moved / (COPY * bandwidth), flops / (double if dtype == torch.float64 else rate))
