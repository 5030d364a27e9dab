"""The step log: the fields of TITAN Table 5, a row per step, nothing lost or doubled on resume."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from chimera.callback.log.steps import Step, StepLog
from chimera.errors import UserError
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
    assert rows["grad_norm"].tolist() == [1.0, 0.25]  # after clipping
    assert rows["learning_rate"][0] == pytest.approx(5e-4)
    assert rows["loss"][1] == 2.5


def test_without_clipping_the_norm_is_the_norm(tmp_path: Path) -> None:
    log_to(tmp_path / "steps.csv").on_step(step(1, clip=0.0))
    assert read(tmp_path / "steps.csv")["grad_norm"][0] == 3.0


def test_resume_cuts_off_what_the_checkpoint_does_not_know(tmp_path: Path) -> None:
    path = tmp_path / "steps.csv"
    log = log_to(path)
    for number in range(1, 8):
        log.on_step(step(number))
    with path.open("a") as file:
        file.write("2026-01-01T00:00:00,0,8,8,1.")  # torn by a kill
    resumed = log_to(path, 5)
    resumed.on_step(step(6))
    assert read(path)["global_step"].tolist() == [1, 2, 3, 4, 5, 6]


def test_a_fresh_start_keeps_nothing(tmp_path: Path) -> None:
    path = tmp_path / "steps.csv"
    log_to(path).on_step(step(1))
    log_to(path)
    assert not len(read(path))


def test_a_file_that_is_no_step_log_is_kept_under_another_name(tmp_path: Path) -> None:
    path = tmp_path / "steps.csv"
    others = "global_step,timestamp,loss,added\n1,2026-01-01,3.5,x\n"
    path.write_text(others)
    log_to(path, 5).on_step(step(6))
    assert (tmp_path / "steps-1.csv").read_text() == others
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(UserError, match="no regular file"):
        read(path)
    log_to(path, 5).on_step(step(6))
    assert len(read(path)) == 1


@pytest.mark.parametrize("content", [b"a,b\n1,2\n", b"\xff\xfe,\n", b'"' + b"x" * 200_000])
def test_a_foreign_file_is_refused_in_one_line(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "steps.csv").write_bytes(content)
    with pytest.raises(UserError, match=r"steps\.csv"):
        read(tmp_path / "steps.csv")
