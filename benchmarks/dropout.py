"""Seconds of dropout by counters and of torch's: `python -m benchmarks.dropout`.

Forward and backward pass, one thread, p = 0.1, the median of 15 in turns.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import torch
import torch.nn.functional as F
from torch import Tensor

from chimera.ops.dropout import dropout, label, sample_keys, token_keys

SHAPES = ((16, 128, 128), (16, 128, 512), (8, 512, 768), (8, 512, 3072))
TURNS = 15


def passes(drop: Callable[[Tensor], Tensor], shape: tuple[int, ...]) -> float:
    """Milliseconds of a forward and a backward pass."""
    x = torch.ones(shape, requires_grad=True)
    slope = torch.ones(shape)
    began = time.perf_counter()
    drop(x).backward(slope)
    return 1e3 * (time.perf_counter() - began)


def main() -> None:
    """Print a Markdown table."""
    torch.set_num_threads(1)
    call = label("benchmark")
    print("| [b t d] | `F.dropout`, ms | by counters, ms | ratio |\n| --- | ---: | ---: | ---: |")
    for shape in SHAPES:
        keys = token_keys(sample_keys(0, 0, torch.arange(shape[0])), torch.arange(shape[1])[None])

        def ours(x: Tensor, keys: Tensor = keys) -> Tensor:
            return dropout(x, 0.1, True, keys, call)

        def torchs(x: Tensor) -> Tensor:
            return F.dropout(x, 0.1)

        rounds = [[passes(way, shape) for way in (torchs, ours)] for _ in range(TURNS + 2)][2:]
        theirs, own = (median(times) for times in zip(*rounds, strict=True))
        print(f"| {list(shape)} | {theirs:.1f} | {own:.1f} | {own / theirs:.2f} |")


if __name__ == "__main__":
    main()
