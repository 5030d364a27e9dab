"""Every mixer's time and memory against length, beside its peers: TITAN's Table 7, measured.

Causal, width 256, 4 heads, batch 1, fp32, 2 threads, no positions; forward and backward, gradient
of the input included. A turn runs everybody at every length, so that whatever else the machine does
falls on all of them alike; medians of five turns are compared. Memory is the most that torch's
allocator holds at one time beyond the weights and the input (`benchmarks.memory`).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from benchmarks.aims import reached
from benchmarks.cost_report import write
from benchmarks.memory import peak
from benchmarks.parts import Alone, composite, names
from benchmarks.peers import peers
from benchmarks.timing import turns

DIM, HEADS, LENGTHS, ROUNDS = 256, 4, (512, 1024, 2048, 4096, 8192), 5
#: A length is dropped where four times the last one's memory, as a quadratic form has, is beyond.
MOST_BYTES = 3 * 2**30
FIT_FROM = 1024
THREADS = 2


def main() -> dict[str, Any]:
    """Measure, print the table and the aims, write `docs/cost.md` and `docs/cost.png`."""
    torch.set_num_threads(THREADS)
    torch.manual_seed(0)
    ours = [name for name in names() if not composite(name)]
    rivals: dict[str, nn.Module] = {n: Alone(n, DIM, HEADS, LENGTHS[-1]) for n in ours}
    rivals |= peers(DIM, HEADS, LENGTHS[-1])
    work: dict[tuple[int, str], Callable[[], None]] = {}
    memory: dict[str, dict[int, int]] = {name: {} for name in rivals}
    for name, rival in rivals.items():
        for length, run, held in _affordable(rival):
            work[length, name], memory[name][length] = run, held
    # By length, so that those who are compared run one soon after the other.
    by_length = {f"{t} {name}": work[t, name] for t, name in sorted(work, key=lambda k: k[0])}
    taken = turns(by_length, rounds=ROUNDS, warmup=1)
    seconds = {n: {t: taken[f"{t} {n}"] for t in memory[n]} for n in rivals}
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
    aims = reached(seconds)
    return write(rows, aims, LENGTHS)


def _affordable(rival: nn.Module) -> Iterator[tuple[int, Callable[[], None], int]]:
    """Lengths with the work to time and its peak memory, up to the length that costs too much."""
    held = 0
    for length in LENGTHS:
        if 4 * held > MOST_BYTES:
            return
        run = _pass(rival, length)
        held = peak(run)
        yield length, run, held


def _pass(rival: nn.Module, length: int) -> Callable[[], None]:
    """Forward and backward, with gradients that start from nothing."""
    x = torch.randn(1, length, DIM, requires_grad=True)
    toward = torch.randn(1, length, DIM)
    wanted = [x, *rival.parameters()]

    def run() -> None:
        torch.autograd.grad(rival(x), wanted, toward, allow_unused=True)

    return run


def exponent(cost: Mapping[int, float]) -> float:
    """Slope of log cost against log length, least squares, from FIT_FROM tokens on."""
    points = [(math.log(t), math.log(c)) for t, c in cost.items() if t >= FIT_FROM]
    return statistics.linear_regression(*zip(*points, strict=True)).slope
