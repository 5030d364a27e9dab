"""The picture of a table's values: where its axis begins."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from chimera.report.figures import bars
from chimera.report.table_results import read_results
from tests.report.runs import make


@pytest.fixture(autouse=True)
def _runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHIMERA_RUNS", str(tmp_path))


def measured(table: str, values: dict[str, float]) -> tuple[Any, float, float]:
    """The side of the measured values of rows with one seed each; the ends of its axis."""
    make(table, {(row, 0): value for row, value in values.items()})
    axis = bars(read_results(table, ["scale=smoke"], [0])).axes[-1]
    low, high = map(float, axis.get_xlim())
    return axis, low, high


@pytest.mark.parametrize(
    ("values", "at_zero"),
    [((700.0, 11_500.0), True), ((190.0, 200.0), False), ((-0.1, 0.2), False)],
)
def test_a_margin_does_not_reach_below_zero(values: tuple[float, float], at_zero: bool) -> None:
    rows = {"full": values[0], "transformer": values[1]}
    _, low, high = measured("titan/efficiency", rows)
    assert (low == 0) is at_zero
    assert low <= values[0] < values[1] < high


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        ((600.0, 640.0), "unigram"),
        ((60.0, 61.0), "unigram 622.2 →"),
        ((9e3, 9.1e3), "← unigram 622.2"),
    ],
)
def test_a_trivial_predictor_far_from_the_rows_is_named_at_the_edge(
    values: tuple[float, float], shown: str
) -> None:
    """The unigram predictor of these invented runs has a perplexity of 622.2."""
    rows = {"qdyt": values[0], "layernorm": values[1]}
    axis, low, high = measured("bitnet_qdyt/norms", rows)
    assert shown in [text.get_text() for text in axis.texts]
    assert (low <= 622.2 <= high) is (shown == "unigram")


def test_a_long_name_stands_on_several_lines_beside_no_other() -> None:
    axis, _, _ = measured("titan/baselines", {"transformer": 300.0})
    figure = axis.figure
    figure.draw_without_rendering()
    names = [label.get_window_extent() for label in figure.axes[0].get_yticklabels()]
    assert axis.get_window_extent().width > 0.35 * figure.bbox.width
    assert all(not one.overlaps(other) for one, other in itertools.pairwise(names))
    assert all(one.x0 >= 0 for one in names)
