"""What a record says of validations: those on the way, and the one at the end."""

from __future__ import annotations

from typing import Any

import pytest

from chimera.rundir.steps import validated

RECORD: dict[str, Any] = {
    "steps": 1000,
    "validations": [[600, 5.5]],
    "metrics": {"val/loss": 5.25},
    "epochs": {"1": {"step": 600, "loss": 5.5}},
}


def test_the_last_validation_is_the_one_that_the_metrics_are_of() -> None:
    assert validated(RECORD) == [(600, 5.5), (1000, 5.25)]
    assert validated(RECORD | {"validations": []}) == [(1000, 5.25)]


@pytest.mark.parametrize(
    "other",
    [
        {"validations": [[500, 5.75], [1000, 5.25]]},  # validated at the last step anyway
        {"metrics": {"val/score": 0.5}},
        {"epochs": {"1": {"step": 600, "loss": 5.5, "score": 0.5}}},  # metrics of the best epoch
    ],
)
def test_no_point_is_drawn_twice_or_in_another_place(other: dict[str, Any]) -> None:
    record = RECORD | other
    assert validated(record) == [(step, loss) for step, loss in record["validations"]]


def test_a_run_without_a_record_has_none() -> None:
    assert validated({}) == []
