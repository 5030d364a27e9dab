"""What SoRA's thresholds take from a gate in all is set beside the gates that live."""

from __future__ import annotations

import math

import pytest
from benchmarks.stored import Pair

from benchmarks import gates

STEPS = 1000


def run(
    row: str,
    rank: float,
    *,
    l1: float = 0.1,
    xi: float | None = None,
    start: str = "normal",
    table: str = gates.TABLE,
) -> Pair:
    """Configuration and run.json of a run whose schedule has no warm-up."""
    config = {
        "table": {"name": table, "row": row},
        "choices": {"scale": gates.SCALE, "data": gates.DATA},
        "adapter": {
            "gates": start,
            "threshold": "lr_lambda" if xi is None else "xi",
            "l1": l1,
            "xi": xi,
            "r": 8,
        },
        "optim": {
            "lr": 1e-3,
            "rates": {"gate": 10.0},
            "warmup": 0.0,
            "min_ratio": 0.0,
            "schedule": {"_target_": "chimera.optim.schedule.warmup_cosine"},
        },
    }
    return config, {"steps": STEPS, "metrics": {"val/rank": rank, "val/mcc": 0.1}}


def cells(text: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()][2:]


def test_a_threshold_takes_the_sum_of_its_steps() -> None:
    # A half cosine without warm-up has a mean of a half (and half a step more at its start).
    found = gates.line_of(run("lr_lambda_01", 3.0)[0], STEPS)
    assert found.taken == pytest.approx(1e-2 * 0.1 * (STEPS + 1) / 2, rel=1e-5)
    assert found.kept == pytest.approx(8 * math.erfc(found.taken / math.sqrt(2)))
    assert gates.line_of(run("xi_0001", 3.0, xi=0.001)[0], STEPS).taken == pytest.approx(1.0)


@pytest.mark.parametrize(("l1", "kept"), [(0.19, 8.0), (0.21, 0.0)])
def test_equal_gates_die_together(l1: float, kept: float) -> None:
    assert gates.line_of(run("lr_lambda_02", 3.0, l1=l1, start="ones")[0], STEPS).kept == kept


def test_the_papers_counts_stand_beside_ours() -> None:
    pairs = [
        run("lr_lambda_02", 0.0, l1=0.2),
        run("lr_lambda_02", 1.0, l1=0.2),
        run("xi_0001", 2.0, xi=0.001),
        run("lr_lambda_02", 5.0, l1=0.2, table="saidl/adapters"),
    ]
    lines = cells(gates.page(pairs))
    assert [line[:3] for line in lines] == [
        ["N(0, 1)", "η·λ, λ = 0.2", "0"],
        ["N(0, 1)", "ξ = 0.001", "–"],
    ]
    assert lines[0][5:7] == ["2", "0.50 ± 0.71"]
    assert gates.page([]) == "No runs yet.\n"
