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

from dataclasses import dataclass
from itertools import combinations, product

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.stats import f as fisher
from scipy.stats import t as student

from chimera.report.stats import LEVEL, Difference, corrected

Array = NDArray[np.float64]
#: A pair of levels: for each of two factors, its name and the level.
Pair = tuple[tuple[str, str], tuple[str, str]]


def holm(tests: list[float]) -> list[float]:
    """p-values after Holm's correction for their number."""
    found = corrected([Difference(0.0, None, 1, p) for p in tests])
    return [one.corrected for one in found if one is not None and one.corrected is not None]


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
        self.factors = list(levels)
        cells = sorted({key[:-1] for key in values.index})
        self.cells = pd.MultiIndex.from_tuples(cells, names=self.factors)
        self.y, self.noise = self._means(values)
        self.runs = np.array([len(values.loc[cell]) for cell in cells], np.float64)
        self.design = self._design()
        self.solve: Array = np.asarray(np.linalg.pinv(self.design), np.float64)
        self.coefficients = self.solve @ self.y
        self.rest: Array = self.y - self.design @ self.coefficients
        self.freedom = len(cells) - self.design.shape[1]
        self.squares = float(self.rest @ self.rest)
        self.total = float(((self.y - self.y.mean()) ** 2).sum())
        self.deviation = float(np.sqrt(self.squares / self.freedom))

    def _columns(self, index: pd.MultiIndex, factor: str) -> Array:
        """Columns with sums to zero: the last level is −1 in all."""
        names = index.get_level_values(factor)
        own = np.array([[name == level for level in self.levels[factor]] for name in names], float)
        return own[:, :-1] - own[:, -1:]

    def _design(self) -> Array:
        parts = [self._columns(self.cells, factor) for factor in self.factors]
        return np.hstack([np.ones((len(self.cells), 1)), *parts])

    def _means(self, values: pd.Series) -> tuple[Array, tuple[float, int] | None]:
        cell = self.cells.get_indexer(values.index.droplevel("seed"))
        seeds = values.index.get_level_values("seed").to_numpy()
        own = np.eye(len(self.cells))[cell]
        seed = (seeds[:, None] == np.unique(seeds)).astype(float)
        columns = np.hstack([own, seed[:, :-1] - seed[:, -1:]])
        solved, _, rank, _ = np.linalg.lstsq(columns, values.to_numpy(), rcond=None)
        rest, freedom = values.to_numpy() - columns @ solved, len(values) - int(rank)
        noise = (float(np.sqrt(rest @ rest / freedom)), freedom) if freedom else None
        return solved[: len(self.cells)], noise

    def effects(self) -> pd.DataFrame:
        """A line for each level: factor, level, value, half of its interval, error of seeds, p."""
        lines, start = [], 1
        std = self.noise[0] if self.noise else None
        for factor, levels in self.levels.items():
            free = self.solve[start : start + len(levels) - 1]
            start += len(levels) - 1
            for level, row in zip(levels, [*free, -free.sum(0)], strict=True):
                error = self.deviation * np.sqrt((row**2).sum())
                value = float(row @ self.y)
                lines.append({
                    "factor": factor, "level": level, "value": value,
                    "half": student.isf(LEVEL / 2, self.freedom) * error,
                    "seeds": std and std * np.sqrt(row**2 @ (1 / self.runs)),
                    "p": 2 * student.sf(abs(value) / error, self.freedom),
                })  # fmt: skip
        return pd.DataFrame(lines).assign(p=holm([line["p"] for line in lines]))

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
        return dict(zip(self.factors, zip(parts, holm(tests), strict=True), strict=True))

    def lack(self) -> tuple[float, float] | None:
        """F and p of the rest against the noise of seeds; None with one seed."""
        if self.noise is None:
            return None
        std, freedom = self.noise
        f = self.squares / (std**2 * float((self._maker().diagonal() / self.runs).sum()))
        return f, float(fisher.sf(f, self.freedom, freedom))

    def sums(self) -> pd.Series:
        """Mean and effects of all combinations, trained or not."""
        index = pd.MultiIndex.from_tuples(product(*self.levels.values()), names=self.factors)
        parts = np.hstack([self._columns(index, factor) for factor in self.factors])
        return pd.Series(self.coefficients[0] + parts @ self.coefficients[1:], index)

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
        chosen: list[tuple[list[Pair], Array]] = []
        levels: list[float] = []
        least = 0.0
        while len(chosen) < max(1, self.freedom // 3):
            left = [one for one in candidates if all(one is not other for other in chosen)]
            tests = [self._test([*(z for _, z in chosen), z]) for _, z in left]
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
        for i, (pairs, z) in enumerate(chosen):
            others = [other for j, (_, other) in enumerate(chosen) if j != i]
            value, error, _ = self._test([*others, z])
            half = float(student.isf(levels[i] / 2, self._freedom(len(chosen)))) * error
            found.append(Deviation(pairs, value, half))
        return found, len(candidates), least

    def _candidates(self) -> list[tuple[list[Pair], Array]]:
        kept: list[tuple[list[Pair], Array]] = []
        for first, second in combinations(self.factors, 2):
            a, b = (self.cells.get_level_values(factor) for factor in (first, second))
            for levels in product(self.levels[first], self.levels[second]):
                column = self._maker() @ ((a == levels[0]) & (b == levels[1])).astype(float)
                if column @ column < 1e-6:
                    continue
                pair = ((first, levels[0]), (second, levels[1]))
                same = next((one for one in kept if np.allclose(one[1], column, atol=1e-9)), None)
                if same is None:
                    kept.append(([pair], column))
                else:
                    same[0].append(pair)
        return kept

    def _freedom(self, pairs: int) -> int:
        return self.noise[1] if self.noise else max(1, self.freedom - pairs)

    def _test(self, columns: list[Array]) -> tuple[float, float, float]:
        """Deviation of the last of these columns beside the others, its error and p."""
        z = np.stack(columns, 1)
        if np.linalg.matrix_rank(z) < len(columns):
            return 0.0, float("inf"), 1.0
        inverse = np.linalg.inv(z.T @ z)
        weights = (inverse @ z.T)[-1]
        value, freedom = float(weights @ self.rest), self._freedom(len(columns))
        if self.noise:
            error = self.noise[0] * float(np.sqrt(weights**2 @ (1 / self.runs)))
        else:
            rest = self.rest - z @ (inverse @ z.T @ self.rest)
            error = float(np.sqrt(rest @ rest / freedom * inverse[-1, -1]))
        return value, error, float(2 * student.sf(abs(value) / error, freedom))
