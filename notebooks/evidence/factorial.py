"""Main effects of factors from some of their combinations, by least squares, and what deviates.

    y_c = mean + Σ_f effect_f(level of f in c) + rest_c,      Σ_level effect_f(level) = 0

y_c is a cell's mean over seeds, without what a seed does to all cells. An effect's interval is
Student's with the rest's mean square, so that what the factors do together counts as noise there.
The noise of seeds alone is the deviation of y_cs from cell_c + seed_s; F = rest² / noise² tests
whether the rest is more than that (lack of fit). Float64.

In a Latin square {(i, j, (i + j) mod n)} every pair of levels of two factors has exactly one cell
(R. A. Fisher, 1935, The Design of Experiments, chapter V), so that the effects are estimated
independently of each other. But a cell is of one pair of each two factors, and which of the three
deviates cannot be told.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, product
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.linalg import block_diag
from scipy.stats import f as fisher
from scipy.stats import t as student

from chimera.report.stats import LEVEL, Difference, corrected

Array = NDArray[np.float64]
#: A pair of levels: for each of two factors, its name and the level.
Pair = tuple[tuple[str, str], tuple[str, str]]


def holm(tests: Sequence[float]) -> list[float]:
    """p-values after Holm's correction for their number."""
    found = corrected([Difference(0.0, None, 1, p) for p in tests])
    return [one.corrected for one in found if one is not None and one.corrected is not None]


def contrasts(names: Sequence[Any], levels: Sequence[Any]) -> Array:
    """Columns of a factor with sums to zero: the last level is −1 in all."""
    own = np.equal.outer(np.asarray(names, object), np.asarray(levels, object)).astype(float)
    columns: Array = own[:, :-1] - own[:, -1:]
    return columns


@dataclass(frozen=True)
class Deviation:
    """How far cells with two levels lie from the sum of their effects.

    Args:
        pairs: of levels; several if the design cannot tell them apart.
        value: of the deviation.
        half: half the width of its interval, corrected for all pairs tested beside it.
    """

    pairs: list[Pair]
    value: float
    half: float


class Fit:
    """An additive fit.

    Args:
        values: responses, indexed by the factors' levels and `seed`; levels in the order of
            `levels`.
        levels: of each factor.

    Attributes:
        y: mean of each cell. rest, freedom: of the additive model. noise: standard deviation of a
        run about its cell and seed and its degrees of freedom; None with one seed.
    """

    def __init__(self, values: pd.Series, levels: dict[str, list[str]]) -> None:
        self.levels = levels
        runs = values.groupby(level=[*levels]).size()
        self.cells: pd.MultiIndex = runs.index
        self.runs = runs.to_numpy(np.float64)
        self.y, self.noise = self._means(values)
        self.design = np.hstack([np.ones((len(self.cells), 1)), self._columns(self.cells)])
        self.solve: Array = np.asarray(np.linalg.pinv(self.design), np.float64)
        self.coefficients = self.solve @ self.y
        self.rest: Array = self.y - self.design @ self.coefficients
        self.freedom = len(self.cells) - self.design.shape[1]
        self.squares = float(self.rest @ self.rest)
        self.total = float(((self.y - self.y.mean()) ** 2).sum())
        self.deviation = float(np.sqrt(self.squares / self.freedom))

    def _columns(self, index: pd.MultiIndex) -> Array:
        return np.hstack(
            [contrasts(index.get_level_values(f), of) for f, of in self.levels.items()]
        )

    def _means(self, values: pd.Series) -> tuple[Array, tuple[float, int] | None]:
        own = np.eye(len(self.cells))[self.cells.get_indexer(values.index.droplevel("seed"))]
        seeds = values.index.get_level_values("seed")
        columns = np.hstack([own, contrasts(seeds, seeds.unique())])
        solved, _, rank, _ = np.linalg.lstsq(columns, values.to_numpy(), rcond=None)
        rest, freedom = values.to_numpy() - columns @ solved, len(values) - int(rank)
        noise = (float(np.sqrt(rest @ rest / freedom)), freedom) if freedom else None
        return solved[: len(self.cells)], noise

    def effects(self) -> pd.DataFrame:
        """A line for each level: factor, level, value, half of its interval, error of seeds, p."""
        rows = block_diag(*(contrasts(of, of) for of in self.levels.values())) @ self.solve[1:]
        value, error = rows @ self.y, self.deviation * np.sqrt((rows**2).sum(1))
        p = 2 * student.sf(abs(value) / error, self.freedom)
        names = [(factor, level) for factor, levels in self.levels.items() for level in levels]
        return pd.DataFrame(names, columns=["factor", "level"]).assign(
            value=value,
            half=student.isf(LEVEL / 2, self.freedom) * error,
            seeds=self.noise and self.noise[0] * np.sqrt(rows**2 @ (1 / self.runs)),
            p=holm(p.tolist()),
        )

    def shares(self) -> dict[str, tuple[float, float]]:
        """By factor: the part of the variation that it explains, and p of its F-test by Holm."""
        parts, tests, start = [], [], 1
        for levels in self.levels.values():
            size = len(levels) - 1
            without = np.delete(self.design, range(start, start + size), 1)
            rest = self.y - without @ (np.linalg.pinv(without) @ self.y)
            more, start = float(rest @ rest) - self.squares, start + size
            parts.append(more / self.total)
            tests.append(float(fisher.sf(more / size / self.deviation**2, size, self.freedom)))
        return dict(zip(self.levels, zip(parts, holm(tests), strict=True), strict=True))

    def lack(self) -> tuple[float, float] | None:
        """F and p of the rest against the noise of seeds; None with one seed."""
        if self.noise is None:
            return None
        std, freedom = self.noise
        f = self.squares / (std**2 * float((self._maker().diagonal() / self.runs).sum()))
        return f, float(fisher.sf(f, self.freedom, freedom))

    def sums(self) -> pd.Series:
        """Mean and effects of all combinations, trained or not."""
        index = pd.MultiIndex.from_product(self.levels.values(), names=[*self.levels])
        return pd.Series(self.coefficients[0] + self._columns(index) @ self.coefficients[1:], index)

    def _maker(self) -> Array:
        """Takes the additive fit away. [cells cells]"""
        maker: Array = np.eye(len(self.cells)) - self.design @ self.solve
        return maker

    def deviations(self) -> tuple[list[Deviation], int, float]:
        """Pairs of levels whose cells deviate, the clearest first.

        The pair with the smallest p enters the model if it stays below LEVEL after the correction
        for all that are tested, and the others are tested anew beside it. The error is that of
        seeds; with one seed, that of the rest.

        Returns:
            The deviations, the number of those that the design tells apart, and the value that the
            first test can find.
        """
        candidates = self._candidates()
        chosen: list[Array] = []
        levels: list[float] = []
        least = 0.0
        while len(chosen) < max(1, self.freedom // 3):
            left = [z for z, _ in candidates if not any(z is other for other in chosen)]
            tests = [self._test([*chosen, z]) for z in left]
            level = LEVEL / len(left)
            if not chosen:
                errors = [error for _, error, _ in tests]
                least = float(student.isf(level / 2, self._freedom(1)) * np.median(errors))
            best = min(range(len(left)), key=lambda i: tests[i][2])
            if tests[best][2] >= level:
                break
            chosen.append(left[best])
            levels.append(level)
        found = []
        for level, z in zip(levels, chosen, strict=True):
            value, error, _ = self._test([*(other for other in chosen if other is not z), z])
            half = float(student.isf(level / 2, self._freedom(len(chosen)))) * error
            pairs = next(pairs for column, pairs in candidates if column is z)
            found.append(Deviation(pairs, value, half))
        return found, len(candidates), least

    def _candidates(self) -> list[tuple[Array, list[Pair]]]:
        """Columns that pairs of levels add to the fit, each with its pairs."""
        kept: dict[tuple[float, ...], tuple[Array, list[Pair]]] = {}
        for first, second in combinations(self.levels, 2):
            a, b = (self.cells.get_level_values(factor) for factor in (first, second))
            for levels in product(self.levels[first], self.levels[second]):
                column = self._maker() @ ((a == levels[0]) & (b == levels[1])).astype(float)
                if column @ column > 1e-6:
                    same = kept.setdefault(tuple(column.round(9)), (column, []))
                    same[1].append(((first, levels[0]), (second, levels[1])))
        return [*kept.values()]

    def _freedom(self, pairs: int) -> int:
        return self.noise[1] if self.noise else max(1, self.freedom - pairs)

    def _test(self, columns: list[Array]) -> tuple[float, float, float]:
        """Deviation of the last of these columns beside the others, its error and p."""
        z = np.stack(columns, 1)
        if np.linalg.matrix_rank(z) < len(columns):
            return 0.0, float("inf"), 1.0
        solve = np.linalg.pinv(z)
        weights, freedom = solve[-1], self._freedom(len(columns))
        value = float(weights @ self.rest)
        if self.noise:
            error = self.noise[0] * float(np.sqrt(weights**2 @ (1 / self.runs)))
        else:
            rest = self.rest - z @ (solve @ self.rest)
            error = float(np.sqrt(rest @ rest / freedom * (weights @ weights)))
        return value, error, float(2 * student.sf(abs(value) / error, freedom))
