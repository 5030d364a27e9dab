"""Estimate main effects of factors from some of their combinations, by least squares.

    y_c = mean + Σ_f effect_f(level of f in c) + rest_c,      Σ_level effect_f(level) = 0

y_c is a cell's mean over seeds. The rest is what seeds do and what the factors do together; an
effect's interval is Student's with the rest's mean square, so that it holds beyond the trained
combinations as far as what the factors do together is like noise. What seeds do is known apart:

    y_cs = cell_c + seed_s + noise_cs

whose standard deviation gives each effect's seed error, and F = rest² / noise² tests whether the
rest is more than that (lack of fit). All numbers are float64.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from chimera.errors import UserError
from chimera.report.stats import LEVEL, Difference, corrected

Array = NDArray[np.float64]
#: Levels of all factors that were trained together.
Cell = tuple[str, ...]
#: Numbers by cell and seed.
Values = Mapping[Cell, Mapping[int, float]]
#: Share of the sum of squares below which a rest is rounding.
ROUNDING = 1e-20


@dataclass(frozen=True)
class Noise:
    """Standard deviation of one run about its cell and its seed, and its degrees of freedom."""

    std: float
    freedom: int


@dataclass(frozen=True)
class Effect:
    """Effect of a level, as a difference from the mean over the levels of its factor.

    Args:
        value: of the level.
        half: half the width of its interval at 1 − LEVEL.
        seeds: standard error from seeds alone; None with one seed.
        p: that the level differs from the mean, after Holm's correction for all levels.
    """

    value: float
    half: float
    seeds: float | None
    p: float

    @property
    def significant(self) -> bool:
        """Whether the level differs from the mean of its factor after Holm's correction."""
        return self.p < LEVEL


@dataclass(frozen=True)
class Share:
    """Part of the variation between cells that a factor explains, and p of its F-test by Holm."""

    part: float
    p: float


@dataclass(frozen=True)
class Lack:
    """F-test of the rest against the noise of seeds."""

    f: float
    freedom: tuple[int, int]
    p: float


class Fit:
    """Additive fit of one response.

    Args:
        values: finite numbers by cell and seed.
        factors: levels of each factor; levels without a cell are left out.

    Attributes:
        cells: those that were fitted.
        levels: of each factor, with a cell.
        y: means of the cells over seeds, without what a seed does to all cells.
        noise: of seeds; None if no seed is repeated.
        coefficients, rest, freedom: of the additive model.

    Raises:
        UserError: too few cells to estimate the effects.
    """

    def __init__(self, values: Values, factors: Sequence[Sequence[str]]) -> None:
        self.cells = sorted(cell for cell, seeds in values.items() if seeds)
        self.levels = [
            [level for level in levels if any(cell[f] == level for cell in self.cells)]
            for f, levels in enumerate(factors)
        ]
        self.design, self._blocks = _design(self.cells, self.levels)
        self.freedom = len(self.cells) - self.design.shape[1]
        if self.freedom < 1 or np.linalg.matrix_rank(self.design) < self.design.shape[1]:
            raise UserError(
                f"{len(self.cells)} cells do not tell {self.design.shape[1]} effects apart;"
                f" train more of the design"
            )
        self.y, self.noise = _by_cell(values, self.cells)
        self.runs = np.array([len(values[cell]) for cell in self.cells], np.float64)
        self._solve: Array = np.asarray(np.linalg.pinv(self.design), np.float64)
        self.coefficients = self._solve @ self.y
        self.rest = self.y - self.design @ self.coefficients
        self.total = float(((self.y - self.y.mean()) ** 2).sum())
        self.squares = float(self.rest @ self.rest)
        if self.squares <= ROUNDING * max(self.total, 1.0):
            self.squares = 0.0

    @property
    def mean(self) -> float:
        """Mean over all combinations, by the fit."""
        return float(self.coefficients[0])

    @property
    def explained(self) -> float:
        """R²: part of the variation between cells that the main effects explain."""
        return 1 - self.squares / self.total if self.total else 0.0

    @property
    def by_chance(self) -> float:
        """R² that main effects have on average if no factor does anything."""
        return 1 - self.freedom / (len(self.cells) - 1)

    @property
    def deviation(self) -> float:
        """Standard deviation of the rest of a cell."""
        return math.sqrt(self.squares / self.freedom)

    @cached_property
    def effects(self) -> list[dict[str, Effect]]:
        """Effects of the levels of each factor."""
        names, rows = self._contrasts()
        estimates = rows @ self.y
        errors = self.deviation * np.sqrt((rows**2).sum(1))
        seeds = None if self.noise is None else self.noise.std * np.sqrt(rows**2 @ (1 / self.runs))
        half = quantile(LEVEL, self.freedom) * errors
        p = holm(
            [
                two_sided(value, error, self.freedom)
                for value, error in zip(estimates, errors, strict=True)
            ]
        )
        found: list[dict[str, Effect]] = [{} for _ in self.levels]
        for i, (factor, level) in enumerate(names):
            error = None if seeds is None else float(seeds[i])
            found[factor][level] = Effect(float(estimates[i]), float(half[i]), error, p[i])
        return found

    @cached_property
    def shares(self) -> list[Share]:
        """Part of each factor: by how much the rest grows without it."""
        from scipy.special import fdtrc

        parts, tests = [], []
        for block in self._blocks:
            without = np.delete(self.design, block, 1)
            rest = self.y - without @ (np.linalg.pinv(without) @ self.y)
            more, size = max(0.0, float(rest @ rest) - self.squares), len(block)
            parts.append(more / self.total if self.total else 0.0)
            if not self.squares:
                tests.append(0.0 if parts[-1] > ROUNDING else 1.0)
            else:
                f = more / size / (self.squares / self.freedom)
                tests.append(float(fdtrc(size, self.freedom, f)))
        return [Share(part, p) for part, p in zip(parts, holm(tests), strict=True)]

    @cached_property
    def lack(self) -> Lack | None:
        """Test of the rest against the noise of seeds; None with one seed."""
        if self.noise is None or not self.noise.std:
            return None
        from scipy.special import fdtrc

        expected = self.noise.std**2 * float((self.residual_maker.diagonal() / self.runs).sum())
        f = self.squares / expected
        freedom = (self.freedom, self.noise.freedom)
        return Lack(f, freedom, float(fdtrc(*freedom, f)))

    @cached_property
    def residual_maker(self) -> Array:
        """Matrix that takes the additive fit away. [cells cells]"""
        maker: Array = np.eye(len(self.cells)) - self.design @ self._solve
        return maker

    def predict(self, cell: Cell) -> float | None:
        """Mean and effects of a combination, trained or not; None with a level without a cell."""
        total = self.mean
        for effects, level in zip(self.effects, cell, strict=True):
            if level not in effects:
                return None
            total += effects[level].value
        return total

    def _contrasts(self) -> tuple[list[tuple[int, str]], Array]:
        """Levels as (factor, level), and the weights of the cells in their effects. [… cells]"""
        names, rows = [], []
        for factor, (block, levels) in enumerate(zip(self._blocks, self.levels, strict=True)):
            free = self._solve[block]
            rows += [*free, -free.sum(0)]
            names += [(factor, level) for level in levels]
        return names, np.array(rows).reshape(-1, len(self.cells))


def quantile(level: float, freedom: int) -> float:
    """Two-sided quantile of Student's distribution."""
    from scipy.special import stdtrit  # not scipy.stats, which takes a second to import

    return float(stdtrit(freedom, 1 - level / 2))


def two_sided(value: float, error: float, freedom: int) -> float:
    """p of Student's test of value = 0; without an error 1 for 0, else 0."""
    if not error:
        return 1.0 if abs(value) < math.sqrt(ROUNDING) else 0.0
    from scipy.special import stdtr

    return 2 * float(stdtr(freedom, -abs(value) / error))


def holm(tests: Sequence[float]) -> list[float]:
    """p-values corrected by Holm's method for their number."""
    found = corrected([Difference(0.0, None, 1, p) for p in tests])
    return [1.0 if d is None or d.corrected is None else d.corrected for d in found]


def _design(
    cells: Sequence[Cell], levels: Sequence[Sequence[str]]
) -> tuple[Array, list[list[int]]]:
    """Columns with sums to zero, the last level as −1 in all of its factor, and each factor's."""
    columns, blocks = [np.ones(len(cells))], []
    for factor, names in enumerate(levels):
        blocks.append(list(range(len(columns), len(columns) + len(names) - 1)))
        last = np.array([cell[factor] == names[-1] for cell in cells], np.float64)
        for name in names[:-1]:
            own = np.array([cell[factor] == name for cell in cells], np.float64)
            columns.append(own - last)
    return np.stack(columns, 1), blocks


def _by_cell(values: Values, cells: Sequence[Cell]) -> tuple[Array, Noise | None]:
    """Means of cells, without what a seed does to all cells, and the noise about both."""
    runs = [(i, seed, y) for i, cell in enumerate(cells) for seed, y in values[cell].items()]
    seeds = sorted({seed for _, seed, _ in runs})
    y = np.array([value for *_, value in runs], np.float64)
    columns = np.zeros((len(runs), len(cells) + len(seeds) - 1))
    for row, (i, seed, _) in enumerate(runs):
        columns[row, i] = 1.0
        if seed == seeds[-1]:
            columns[row, len(cells) :] = -1.0
        else:
            columns[row, len(cells) + seeds.index(seed)] = 1.0
    solved, _, rank, _ = np.linalg.lstsq(columns, y, rcond=None)
    freedom = len(runs) - int(rank)
    means: Array = np.asarray(solved[: len(cells)], np.float64)
    if freedom < 1:
        return means, None
    rest = y - columns @ solved
    return means, Noise(math.sqrt(float(rest @ rest) / freedom), freedom)
