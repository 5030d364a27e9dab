"""Scaling of five mixers: `python -m benchmarks scaling` fits the finished runs of `ours/scaling`.

    log loss = log a − b · log FLOPs        least squares, for each mixer and seed over its sizes

FLOPs are those of a run: `flops.training` per token times the tokens of all its steps. The loss has
no irreducible part here, so b holds for these sizes only. b is the mean over seeds, with the
interval of Student's distribution. The runs are those of `SCALE` (default medium) and SEEDS;
without a seed that has all sizes there is nothing to fit.
"""

from __future__ import annotations

import os
import statistics
from typing import Any

import numpy as np

from chimera.report.cells import Cell
from chimera.report.stats import LEVEL, Difference, spread
from chimera.report.summary import summarise

TABLE, SIZES = "ours/scaling", 4
SEEDS = (0, 1, 2)


def flops(cell: Cell) -> float:
    """FLOPs of all steps of a finished run."""
    config, record = cell.config, cell.record
    batch = config["data"]["batch_size"] * config["trainer"]["accumulate_grad_batches"]
    return float(record["flops"]["training"] * record["steps"] * batch * config["data"]["seq_len"])


def fit(points: list[tuple[float, float]]) -> tuple[float, float]:
    """Least squares of log loss on log FLOPs.

    Args:
        points: (FLOPs, loss), at least two.

    Returns:
        a and b of loss = a · FLOPs^(−b).
    """
    flops, losses = np.log(np.array(points)).T
    slope, offset = np.polyfit(flops, losses, 1)
    return float(np.exp(offset)), float(-slope)


def exponents(cells: list[Cell]) -> dict[str, dict[str, Any]]:
    """b of each mixer: mean over the seeds that have all sizes, and its interval."""
    runs: dict[str, dict[int, list[Cell]]] = {}
    for cell in cells:
        if cell.value is not None:
            mixer = cell.row.rpartition("_")[0]
            runs.setdefault(mixer, {}).setdefault(cell.seed, []).append(cell)
    found = {}
    for mixer, by_seed in runs.items():
        whole = [sorted(c, key=lambda x: x.row) for c in by_seed.values() if len(c) == SIZES]
        fits = [fit([(flops(c), float(c.value or 0)) for c in of_seed]) for of_seed in whole]
        values = spread([b for _, b in fits])
        if values is None:
            continue
        ends = Difference(values.mean, values.std, values.n, None).interval
        losses = [
            statistics.fmean(float(c.value or 0) for c in size) for size in zip(*whole, strict=True)
        ]
        found[mixer] = {
            "b": values.mean,
            "interval": list(ends) if ends else None,
            "seeds": values.n,
            "a": statistics.fmean(a for a, _ in fits),
            "flops": [flops(cell) for cell in whole[0]],
            "loss": losses,
        }
    return found


def main() -> dict[str, Any]:
    """Print b of each mixer; return the contents of the results file, empty without runs."""
    scale = os.environ.get("SCALE", "medium")
    found = exponents(summarise(TABLE, [f"scale={scale}"], list(SEEDS)).cells)
    if not found:
        paper, _, name = TABLE.partition("/")
        print(f"no seed has all sizes; run: python train.py -m +{paper}={name} scale={scale}")
        return {}
    for mixer, of in sorted(found.items(), key=lambda item: -item[1]["b"]):
        ends = of["interval"]
        known = f"{1 - LEVEL:.0%} {ends[0]:.4f} to {ends[1]:.4f}" if ends else "one seed"
        print(f"{mixer:12} loss = {of['a']:.3g} · FLOPs^-{of['b']:.4f}  ({known})")
    return {"scale": scale, "level": LEVEL, "mixers": found}
