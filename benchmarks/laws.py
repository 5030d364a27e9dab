"""Laws of loss against compute, fitted to runs: loss = a · FLOPs^(−b)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, geometric_mean

import numpy as np

from chimera.report import style
from chimera.report.style import empty, save


@dataclass(frozen=True)
class Run:
    """A finished run.

    Args:
        mixer, size: of its row, `<mixer>_<size>`.
        seed: of the run.
        flops: of all its steps.
        loss: of validation.
        unigram: loss of a unigram model on the same tokens.
    """

    mixer: str
    size: int
    seed: int
    flops: float
    loss: float
    unigram: float


@dataclass(frozen=True)
class Law:
    """What the runs of a mixer say.

    Args:
        sizes: over which each seed was fitted.
        fits: a and b of each seed.
        losses: of the runs by size and seed.
        flops: of a run by size.
    """

    sizes: tuple[int, ...]
    fits: Mapping[int, tuple[float, float]]
    losses: Mapping[int, Mapping[int, float]]
    flops: Mapping[int, float]

    @property
    def b(self) -> dict[int, float]:
        """Exponents by seed."""
        return {seed: b for seed, (_, b) in self.fits.items()}

    def by_seed(self, flops: float) -> dict[int, float]:
        """Loss by each seed's law."""
        return {seed: a * flops**-b for seed, (a, b) in self.fits.items()}

    def at(self, flops: float) -> float:
        """Loss by the law: the geometric mean of the seeds'."""
        return geometric_mean(self.by_seed(flops).values())


def fit(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Least squares of log loss on log FLOPs.

    Args:
        points: (FLOPs, loss), at least two.

    Returns:
        a and b of loss = a · FLOPs^(−b).
    """
    flops, losses = np.log(np.array(points)).T
    slope, offset = np.polyfit(flops, losses, 1)
    return float(np.exp(offset)), float(-slope)


def fitted(runs: Iterable[Run], most: int | None = None) -> dict[str, Law]:
    """The law of each mixer whose seeds have two sizes in common.

    Args:
        runs: in any order.
        most: largest size to fit; None: all.
    """
    by_mixer: dict[str, dict[int, dict[int, Run]]] = defaultdict(lambda: defaultdict(dict))
    for one in runs:
        by_mixer[one.mixer][one.seed][one.size] = one
    found = {}
    for mixer, seeds in by_mixer.items():
        shared = set[int].intersection(*(set(of) for of in seeds.values()))
        sizes = tuple(sorted(size for size in shared if most is None or size <= most))
        if len(sizes) < 2:
            continue
        fits = {
            seed: fit([(of[size].flops, of[size].loss) for size in sizes])
            for seed, of in sorted(seeds.items())
        }
        losses: dict[int, dict[int, float]] = defaultdict(dict)
        flops = {}
        for seed, of in sorted(seeds.items()):
            for size, one in sorted(of.items()):
                losses[size][seed], flops[size] = one.loss, one.flops
        found[mixer] = Law(sizes, fits, dict(sorted(losses.items())), dict(sorted(flops.items())))
    return found


def draw(laws: Mapping[str, Law], file: Path) -> None:
    """Write a picture of the losses against FLOPs with the fitted laws, as PNG and PDF."""
    figure = empty(8, 5)
    axis = figure.subplots()
    for number, (mixer, of) in enumerate(sorted(laws.items())):
        look = style.line(number)
        ends = [min(of.flops.values()), max(of.flops.values())]
        axis.plot(ends, [of.at(one) for one in ends], color=look["color"], linewidth=1)
        points = [(of.flops[size], loss) for size in of.losses for loss in of.losses[size].values()]
        label = f"{mixer}: b = {fmean(of.b.values()):.4f}"
        axis.plot(
            *zip(*points, strict=True), look["marker"], color=look["color"], label=label,
            markersize=5, markeredgecolor="white", markeredgewidth=0.6,
        )  # fmt: skip
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_xlabel("training FLOPs (matrix products)")
    axis.set_ylabel("validation loss, nats per token")
    axis.yaxis.set_major_formatter("{x:.1f}")
    axis.yaxis.set_minor_formatter("{x:.1f}")
    over = sorted({size for of in laws.values() for size in of.sizes})
    axis.set_title(
        f"Points: a run each; lines: fits over sizes {over[0]} to {over[-1]}", fontsize=10
    )
    style.tidy(axis)
    style.legend(figure, axis)
    save(figure, file, ("png", "pdf"))
