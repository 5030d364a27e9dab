"""The picture of a table's values: where its axis begins."""

from __future__ import annotations

from pathlib import Path

import pytest

from chimera.report.figures import bars
from chimera.report.summary import summarise
from tests.report.runs import make


@pytest.mark.parametrize(
    ("values", "at_zero"),
    [((700.0, 11_500.0), True), ((190.0, 200.0), False), ((-0.1, 0.2), False)],
)
def test_a_margin_does_not_reach_below_zero(
    values: tuple[float, float], at_zero: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHIMERA_RUNS", str(tmp_path))
    make("titan/efficiency", {("full", 0): values[0], ("transformer", 0): values[1]})
    axis = bars(summarise("titan/efficiency", ["scale=smoke"], [0])).axes[-1]
    low, high = map(float, axis.get_xlim())
    assert (low == 0) is at_zero
    assert low <= values[0] < values[1] < high
