"""The step log: the fields of TITAN Table 5, a row per step, nothing lost or doubled on resume."""

from __future__ import annotations

from pathlib import Path

import pytest

from chimera.callback.log.steps import FIELDS, Step, StepLog
from chimera.rundir.steps import read


def step(number: int, **change: float) -> Step:
    facts: dict[str, object] = {
        "epoch": 0,
        "step": number,
        "global_step": number,
        "loss": 5.0 / number,
        "accuracy": 0.1,
        "lr": 5e-4,
        "rates": {"norm": 2e-3},
        "grad_norm": 3.0,
        "clip": 1.0,
        "scaler_scale": 1.0,
        "tokens": 128,
        "seconds": 0.1,
        **change,
    }
    return Step(**facts)  # type: ignore[arg-type]


def log_to(path: Path, resumed_step: int = 0) -> StepLog:
    log = StepLog()
    log.open(path, resumed_step)
    return log


def test_fields_are_exactly_those_of_table_5(tmp_path: Path) -> None:
    log_to(tmp_path / "steps.csv").on_step(step(1))
    head = (tmp_path / "steps.csv").read_text().splitlines()[0]
    assert head == (
        "timestamp,epoch,step,global_step,loss,accuracy,learning_rate,grad_norm,scaler_scale,"
        "gpu_memory_gb,gpu_cached_gb"
    )


def test_a_row_is_on_disk_at_once_and_says_what_was_applied(tmp_path: Path) -> None:
    log = log_to(tmp_path / "steps.csv")
    log.on_step(step(1))
    log.on_step(step(2, grad_norm=0.25))
    rows = read(tmp_path / "steps.csv")  # before close
    assert [float(r["grad_norm"]) for r in rows] == [1.0, 0.25]  # after clipping
    assert float(rows[0]["learning_rate"]) == pytest.approx(5e-4)
    assert float(rows[1]["loss"]) == 2.5
    assert tuple(rows[0]) == FIELDS


def test_without_clipping_the_norm_is_the_norm(tmp_path: Path) -> None:
    log_to(tmp_path / "steps.csv").on_step(step(1, clip=0.0))
    assert float(read(tmp_path / "steps.csv")[0]["grad_norm"]) == 3.0


def test_resume_cuts_off_what_the_checkpoint_does_not_know(tmp_path: Path) -> None:
    path = tmp_path / "steps.csv"
    log = log_to(path)
    for number in range(1, 8):
        log.on_step(step(number))
    with path.open("a") as file:
        file.write("2026-01-01T00:00:00,0,8,8,1.")  # torn by a kill
    resumed = log_to(path, 5)
    resumed.on_step(step(6))
    assert [int(r["global_step"]) for r in read(path)] == [1, 2, 3, 4, 5, 6]


def test_a_fresh_start_keeps_nothing(tmp_path: Path) -> None:
    path = tmp_path / "steps.csv"
    log_to(path).on_step(step(1))
    log_to(path)
    assert read(path) == []
