"""Ratio of two rows of a table over their common seeds, with its 95 % interval."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from chimera.report.stats import paired


@dataclass(frozen=True)
class Ratio:
    """A ratio.

    Args:
        value: geometric mean over seeds.
        interval: of 95 %, Student's of the logarithm.
        seeds: that both rows have.
    """

    value: float
    interval: tuple[float, float]
    seeds: int

    @property
    def shown(self) -> str:
        """The ratio with its interval."""
        low, high = self.interval
        return f"{self.value:.2f} × ({low:.2f} to {high:.2f})"


def by_seed(line: Mapping[str, str]) -> dict[int, float]:
    """Values of a line of report.csv or equal.csv by seed; empty without runs."""
    pairs = zip(line["seeds"].split(";"), line["values"].split(";"), strict=True)
    return {int(seed): float(value) for seed, value in pairs} if line["values"] else {}


def ratio(
    first: Mapping[int, float],
    second: Mapping[int, float],
    log: Callable[[float], float] = math.log,
) -> Ratio | None:
    """The first row divided by the second; None without two common seeds.

    Args:
        first, second: values by seed.
        log: how a value becomes its logarithm; `float` for values that are logarithms.
    """
    gap = paired(
        {seed: log(value) for seed, value in first.items()},
        {seed: log(value) for seed, value in second.items()},
    )
    if gap is None or gap.interval is None:
        return None
    low, high = (math.exp(end) for end in gap.interval)
    return Ratio(math.exp(gap.mean), (low, high), gap.n)
