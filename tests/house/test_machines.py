"""The settings of `python -m tests.machines --pairs`."""

from __future__ import annotations

import itertools

from tests.machines import ATEN, LEVELS, ONEDNN, THREADS, pairs

PYTHONS = ("one", "two", "three")


def test_every_two_settings_meet() -> None:
    found = [((onednn, aten), threads, python) for onednn, aten, threads, python in pairs(PYTHONS)]
    assert {level for level, *_ in found} == set(itertools.product(ONEDNN, ATEN))
    same = list(LEVELS.values())
    for i, j in ((0, 1), (0, 2), (1, 2)):
        sides = [same, THREADS, PYTHONS]
        wanted = set(itertools.product(sides[i], sides[j]))
        assert wanted <= {(setting[i], setting[j]) for setting in found}
    assert len(found) == len(set(found)) == 15  # of 54
