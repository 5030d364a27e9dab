"""Measure time and memory of every mixer and of its peers against length (TITAN Table 7).

Causal, width 256, 4 heads, batch 1, fp32, 2 threads, no positions; forward and backward pass with
the gradient of the input. Each of five rounds runs every mixer at every length, so that other work
of the machine affects all of them alike; times are medians of the rounds. Memory is the peak of
torch's allocator beyond the weights and the input (`benchmarks.timing`).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from benchmarks.parts import Alone, composite, names
from benchmarks.peers import peers
from benchmarks.timing import peak, show, turns

DIM, HEADS, LENGTHS, ROUNDS = 256, 4, (512, 1024, 2048, 4096, 8192), 5
#: Largest memory of a length; expected is four times the memory of the length before, as lengths
#: double and a quadratic form then needs four times as much.
MOST_BYTES = 3 * 2**30
#: Shortest length of the fit of exponents.
FIT_FROM = 1024
THREADS = 2


def main() -> dict[str, Any]:
    """Measure, print, return the contents of the results file (notebooks/evidence/cost.ipynb)."""
    torch.set_num_threads(THREADS)
    torch.manual_seed(0)
    ours = [name for name in names() if not composite(name)]
    rivals: dict[str, nn.Module] = {n: Alone(n, DIM, HEADS, LENGTHS[-1]) for n in ours}
    rivals |= peers(DIM, HEADS, LENGTHS[-1])
    work: dict[tuple[int, str], Callable[[], None]] = {}
    memory: dict[str, dict[int, int]] = {name: {} for name in rivals}
    for name, rival in rivals.items():
        for length, run, peak_bytes in _affordable(rival):
            work[length, name], memory[name][length] = run, peak_bytes
    # Sorted by length, so that compared mixers run soon after each other.
    by_length = {f"{t} {name}": work[t, name] for t, name in sorted(work, key=lambda k: k[0])}
    medians = turns(by_length, rounds=ROUNDS, warmup=1)
    seconds = {n: {t: medians[f"{t} {n}"] for t in memory[n]} for n in rivals}
    rows = {
        name: {
            "ours": name in ours,
            "seconds": seconds[name],
            "bytes": memory[name],
            "time_exponent": exponent(seconds[name]),
            "memory_exponent": exponent(memory[name]),
        }
        for name in rivals
    }
    show(seconds, "seconds by number of tokens")
    return {"rows": rows}


def _affordable(rival: nn.Module) -> Iterator[tuple[int, Callable[[], None], int]]:
    """Yield length, function to time and its peak bytes, for lengths within MOST_BYTES."""
    peak_bytes = 0
    for length in LENGTHS:
        if 4 * peak_bytes > MOST_BYTES:
            return
        run = _pass(rival, length)
        peak_bytes = peak(run)
        yield length, run, peak_bytes


def _pass(rival: nn.Module, length: int) -> Callable[[], None]:
    """A function that runs the forward and backward pass and accumulates no gradients."""
    x = torch.randn(1, length, DIM, requires_grad=True)
    output_gradient = torch.randn(1, length, DIM)
    inputs = [x, *rival.parameters()]

    def run() -> None:
        torch.autograd.grad(rival(x), inputs, output_gradient, allow_unused=True)

    return run


def exponent(cost: Mapping[int, float]) -> float:
    """Slope of log cost against log length by least squares, from FIT_FROM tokens on.

    Args:
        cost: cost by length.
    """
    points = [(math.log(t), math.log(c)) for t, c in cost.items() if t >= FIT_FROM]
    return statistics.linear_regression(*zip(*points, strict=True)).slope
