"""A killed job stops no other; the second sweep resumes it. `make torture` has more of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.torture import sweep


# It starts five processes; tests/sweep/test_engine.py has the same with light jobs.
@pytest.mark.slow
def test_a_killed_job_stops_no_other_and_a_second_sweep_resumes_it(tmp_path: Path) -> None:
    arguments = [
        "seed=0,1",
        *sweep.OVERRIDES[0:1],
        *sweep.OVERRIDES[2:],
        "model.dim=32",
        "model.depth=1",
    ]
    sweep.plant(tmp_path, {"seed=1": "kill"})
    first = sweep.sweep(tmp_path, arguments)
    assert first.returncode == 1
    assert "failed: seed=1: killed by SIGKILL" in first.stderr
    assert sorted(sweep.states(tmp_path).values()) == ["DONE", "RUNNING"]
    assert sweep.attempts(tmp_path) == 2
    assert sweep.sweep(tmp_path, arguments).returncode == 0
    assert list(sweep.states(tmp_path).values()) == ["DONE", "DONE"]
    assert sweep.attempts(tmp_path) == 3


@pytest.mark.slow
def test_a_sweep_of_which_half_the_jobs_fail(tmp_path: Path) -> None:
    assert sweep.resumes(tmp_path) == []
