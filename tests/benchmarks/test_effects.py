"""Main effects and pairs from a part of all combinations: simulated numbers with known effects."""

from __future__ import annotations

from collections import Counter
from itertools import combinations

import numpy as np
import pytest
from benchmarks.effect.fit import Cell, Fit, Values
from benchmarks.effect.pairs import Name, pairs
from benchmarks.effect.squares import cells, squares

from chimera.errors import UserError

NAMES = tuple(tuple(f"{factor}{level}" for level in range(5)) for factor in "nqf")
#: Effects of the levels, whose sum is zero.
TRUE = ((-0.2, -0.1, 0.0, 0.1, 0.2), (0.3, 0.0, -0.1, -0.1, -0.1), (0.0, 0.05, 0.0, -0.05, 0.0))
MEAN = 0.5
PLANTED = ("n1", "q3")


def exact(cell: Cell) -> float:
    """Mean and effects of a cell."""
    return MEAN + sum(TRUE[f][NAMES[f].index(level)] for f, level in enumerate(cell))


def simulated(
    number: int = 1, *, seeds: int = 2, noise: float = 0.0, pair: float = 0.0, draw: int = 0
) -> dict[Cell, dict[int, float]]:
    """Runs with the true effects, a deviating pair, a shift of each seed, and noise."""
    random = np.random.default_rng(draw)
    shifts = random.normal(0, 0.5, seeds)
    shifts -= shifts.mean()
    return {
        cell: {
            seed: exact(cell)
            + pair * (cell[:2] == PLANTED)
            + float(shifts[seed] + random.normal(0, noise))
            for seed in range(seeds)
        }
        for cell in cells(NAMES, number)
    }


@pytest.mark.parametrize(("order", "number"), [(3, 1), (5, 1), (5, 2), (7, 3), (4, 4)])
def test_every_pair_of_levels_is_as_often_in_the_squares(order: int, number: int) -> None:
    found = squares(order, number)
    assert len(set(found)) == len(found) == number * order**2
    for first, second in combinations(range(3), 2):
        counts = Counter((cell[first], cell[second]) for cell in found)
        assert set(counts.values()) == {number}
        assert len(counts) == order**2
    if number > 1:  # each time with another level of the third factor
        thirds = {cell[2] for cell in found if cell[:2] == (1, 2)}
        assert len(thirds) == number
    names = [[str(level) for level in range(order)]] * 3
    design = Fit({tuple(map(str, c)): {0: 0.0} for c in found}, names).design
    gram = design.T @ design
    for f, g in combinations(range(3), 2):  # factors, and the mean, are orthogonal
        size = order - 1
        block = gram[1 + f * size : 1 + (f + 1) * size, 1 + g * size : 1 + (g + 1) * size]
        assert not block.any()
    assert not gram[0, 1:].any()


def test_a_design_that_is_no_square_is_refused() -> None:
    wrong: list[tuple[list[list[str]], int, str]] = [
        ([["a", "b", "c"], ["a", "b", "c"], ["a", "b"]], 1, "there are 3, 3, 2"),
        ([["a", "b", "b"]] * 3, 1, "level b is named twice"),
        ([["a", "b", "c"]] * 3, 4, "3 levels have 1 to 3 squares"),
        ([["a", "b"]] * 3, 1, "name at least 3"),
    ]
    for factors, number, said in wrong:
        with pytest.raises(UserError, match=said):
            cells(factors, number)


@pytest.mark.parametrize("without", [0, 3])
def test_known_effects_are_recovered(without: int) -> None:
    """Exactly without noise, and without some of the cells; a seed's shift is no noise."""
    values = simulated()
    for cell in list(values)[:without]:
        del values[cell]
    next(iter(values.values())).popitem()  # a cell with one seed: the shift of its seed is known
    fit = Fit(values, NAMES)
    assert fit.freedom == 25 - without - 13
    assert fit.mean == pytest.approx(MEAN)
    assert fit.noise is not None
    assert fit.noise.std == pytest.approx(0, abs=1e-9)
    for factor, levels in enumerate(NAMES):
        found = [fit.effects[factor][level].value for level in levels]
        assert found == pytest.approx(TRUE[factor], abs=1e-9)
    assert fit.explained == pytest.approx(1)
    assert fit.predict(("n0", "q0", "f4")) == pytest.approx(0.6)
    if not without:  # the factors are orthogonal, so their parts add up
        assert sum(share.part for share in fit.shares) == pytest.approx(1)


def test_levels_without_a_cell_are_left_out() -> None:
    values = {c: v for c, v in simulated().items() if c[0] != "n4"}
    fit = Fit(values, NAMES)
    assert list(fit.effects[0]) == ["n0", "n1", "n2", "n3"]
    assert fit.predict(("n4", "q0", "f0")) is None
    few: Values = dict(list(simulated().items())[:8])
    with pytest.raises(UserError, match="8 cells do not tell"):
        Fit(few, NAMES)


def test_intervals_cover_the_effects() -> None:
    """Noise and interactions between the cells alike: 95% of the intervals have the effect."""
    covered, errors, draws = [], [], 150
    for draw in range(draws):
        fit = Fit(simulated(seeds=1, noise=0.1, draw=draw), NAMES)
        for factor, levels in enumerate(NAMES):
            for level, true in zip(levels, TRUE[factor], strict=True):
                effect = fit.effects[factor][level]
                covered.append(abs(effect.value - true) <= effect.half)
                errors.append(effect.value - true)
    assert 0.93 < np.mean(covered) < 0.97  # its own standard error is about 0.006
    assert np.std(errors) == pytest.approx(0.1 * np.sqrt(4 / 25), rel=0.1)  # of cells' noise


def test_noise_of_seeds_and_lack_of_fit() -> None:
    drawn = [Fit(simulated(noise=0.1, draw=draw), NAMES) for draw in range(100)]
    stds = [fit.noise.std for fit in drawn if fit.noise]
    assert np.sqrt(np.mean(np.square(stds))) == pytest.approx(0.1, rel=0.05)
    assert drawn[0].noise is not None
    assert drawn[0].noise.freedom == 24
    errors = [effect.seeds for effect in drawn[0].effects[0].values()]
    assert errors == pytest.approx([drawn[0].noise.std * np.sqrt(4 / 25 / 2)] * 5)
    p = [fit.lack.p for fit in drawn if fit.lack]
    assert 0 <= np.mean(np.array(p) < 0.05) <= 0.12
    assert 0.4 < np.mean(p) < 0.6
    lack = Fit(simulated(noise=0.02, pair=0.3), NAMES).lack
    assert lack is not None
    assert lack.freedom == (12, 24)
    assert lack.p < 0.001
    single = Fit(simulated(seeds=1, noise=0.1), NAMES)
    assert (single.noise, single.lack, single.effects[0]["n0"].seeds) == (None, None, None)


def test_a_planted_pair_is_found_by_two_squares() -> None:
    result = pairs(Fit(simulated(2, noise=0.05, pair=0.4), NAMES))
    (found,) = result.found
    assert found.names == [Name((0, 1), PLANTED)]
    assert found.cells == 2
    assert abs(found.value - 0.4) < found.half < 0.4
    assert result.tested == 75
    assert result.by_seeds
    assert 0.1 < result.least < 0.4


def test_one_square_cannot_say_which_of_three_pairs() -> None:
    values = simulated(noise=0.03, pair=0.5)
    (third,) = (cell[2] for cell in values if cell[:2] == PLANTED)
    result = pairs(Fit(values, NAMES))
    found = result.found[0]
    expected = [Name((0, 1), PLANTED), Name((0, 2), ("n1", third)), Name((1, 2), ("q3", third))]
    assert found.names == expected
    assert abs(found.value - 0.5) < found.half
    assert result.tested == 25
    single = pairs(Fit(simulated(seeds=1, noise=0.02, pair=0.5), NAMES))
    assert not single.by_seeds
    assert single.found[0].names == expected


def test_pairs_are_rarely_found_where_there_are_none() -> None:
    """Holm's method: at most about one task in twenty has any."""
    wrong = [bool(pairs(Fit(simulated(noise=0.1, draw=d), NAMES)).found) for d in range(30)]
    assert sum(wrong) <= 4
    assert not pairs(Fit(simulated(), NAMES)).found
