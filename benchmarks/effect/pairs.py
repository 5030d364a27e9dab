"""Find pairs of levels whose cells differ from the sum of the main effects.

A pair's deviation d is estimated with the main effects: y = additive model + d · [cell has the
pair], as if it were the only pair that deviates. The mean of the additive fit's rest over the cells
of the pair is smaller, because the effects of its levels take a share of d. The pair with the
smallest p enters the model if it stays below LEVEL after Holm's correction for all that are tested,
and the others are tested anew beside it, so that a pair is not named for a cell that it shares with
a stronger one. The error is that of seeds; with one seed a run, that of the rest of the fit.

In one Latin square each pair of levels has one cell, and each cell is of three pairs: the three
have the same deviation, and are found together (`Pair.names`).
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from benchmarks.effect.fit import Array, Fit, quantile, two_sided
from chimera.report.stats import LEVEL

#: A pair whose cells leave less than this beside the main effects cannot be estimated.
SMALLEST = 1e-6
#: Part of the rest's degrees of freedom that pairs may use.
MOST = 1 / 3


@dataclass(frozen=True)
class Name:
    """A pair: indices of its factors, and their levels."""

    factors: tuple[int, int]
    levels: tuple[str, str]


@dataclass(frozen=True)
class Pair:
    """Deviation of a pair from the sum of its effects.

    Args:
        names: the pairs that have this deviation; several if the design cannot tell them apart.
        value: of the response.
        half: half the width of its interval, corrected for all pairs tested beside it.
        cells: number of cells of the first of them.
    """

    names: list[Name]
    value: float
    half: float
    cells: int


@dataclass(frozen=True)
class Pairs:
    """What a search found.

    Args:
        found: pairs that deviate, the clearest first.
        tested: number of deviations that the design tells apart.
        full: whether the search stopped because it used its part of the degrees of freedom.
        least: deviation that the first test can find, for a pair with the usual number of cells.
        by_seeds: whether the error is that of seeds.
    """

    found: list[Pair]
    tested: int
    full: bool
    least: float
    by_seeds: bool


@dataclass(frozen=True, eq=False)  # compared as objects: columns are arrays
class _Candidate:
    names: list[Name]
    column: Array
    cells: int


def pairs(fit: Fit) -> Pairs:
    """Search the pairs of a fit."""
    candidates = _candidates(fit)
    by_seeds = fit.noise is not None and fit.noise.std > 0
    most, least = max(1, int(MOST * fit.freedom)), 0.0
    chosen: list[_Candidate] = []
    levels: list[float] = []
    while len(chosen) < most:
        left = [c for c in candidates if c not in chosen]
        tests = [_test(fit, [*chosen, c]) for c in left]
        usable = [(p, i) for i, (_, error, p) in enumerate(tests) if error is not None]
        if not usable:
            break
        level = LEVEL / len(left)
        if not chosen:
            errors = [error for _, error, _ in tests if error is not None]
            least = quantile(level, _freedom(fit, 1)) * statistics.median(errors)
        p, best = min(usable)
        if p >= level:
            break
        chosen.append(left[best])
        levels.append(level)
    found = []
    for i, candidate in enumerate(chosen):
        value, error, _ = _test(fit, [*chosen[:i], *chosen[i + 1 :], candidate])
        half = quantile(levels[i], _freedom(fit, len(chosen))) * (error or 0.0)
        found.append(Pair(candidate.names, value, half, candidate.cells))
    return Pairs(found, len(candidates), len(chosen) == most, least, by_seeds)


def _candidates(fit: Fit) -> list[_Candidate]:
    """Pairs with a cell, those with the same deviation together."""
    kept: list[_Candidate] = []
    for first, second in combinations(range(len(fit.levels)), 2):
        for a in fit.levels[first]:
            for b in fit.levels[second]:
                has = np.array([c[first] == a and c[second] == b for c in fit.cells], np.float64)
                column = fit.residual_maker @ has
                size = float(column @ column)
                if size < SMALLEST:
                    continue
                name = Name((first, second), (a, b))
                same = next((k for k in kept if _same(k.column, column)), None)
                if same is not None:
                    same.names.append(name)
                else:
                    kept.append(_Candidate([name], column, int(has.sum())))
    return kept


def _same(a: Array, b: Array) -> bool:
    return bool(np.allclose(a, b, atol=1e-9))


def _freedom(fit: Fit, pairs_in_model: int) -> int:
    if fit.noise is not None and fit.noise.std > 0:
        return fit.noise.freedom
    return max(1, fit.freedom - pairs_in_model)


def _test(fit: Fit, chosen: list[_Candidate]) -> tuple[float, float | None, float]:
    """Deviation of the last of these pairs beside the others, its error, p; None if it has none."""
    z = np.stack([candidate.column for candidate in chosen], 1)
    gram = z.T @ z
    if fit.freedom <= len(chosen) or np.linalg.matrix_rank(gram, tol=SMALLEST) < len(chosen):
        return 0.0, None, 1.0
    inverse = np.linalg.inv(gram)
    weights = (inverse @ z.T)[-1]
    value = float(weights @ fit.rest)
    if fit.noise is not None and fit.noise.std > 0:
        error = fit.noise.std * math.sqrt(float(weights**2 @ (1 / fit.runs)))
    else:
        rest = fit.rest - z @ (inverse @ z.T @ fit.rest)
        error = math.sqrt(float(rest @ rest) / (fit.freedom - len(chosen)) * inverse[-1, -1])
    return value, error, two_sided(value, error, _freedom(fit, len(chosen)))
