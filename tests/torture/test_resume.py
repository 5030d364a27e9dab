"""Kill a run at chosen moments and resume it: it ends as the uninterrupted run, bit by bit."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.torture import job

#: An epoch has 7 micro-batches: 1, 3, 5 are within an accumulation, 7, 14, 21 end an epoch.
KILLS: dict[str, tuple[int, ...]] = {
    "micro-batch": (1, 2, 3, 6, 7, 8, 13, 14, 15, 21, 22, 25),
    "update": (5, 9),
    "row": (1, 4, 7),
    "validation": (1, 2, 3),
    "save, writing": (1, 2, 4, 5, 6),
    "save, between": (2, 5),
    "save, named": (3, 6),
    "test": (1,),
}
#: That of `make test`.
FAST = ("save, between", 5, 2)
CASES = [
    pytest.param(moment, number, workers, marks=[pytest.mark.slow] * (case != FAST))
    for workers in (0, 2)
    for moment, numbers in KILLS.items()
    for number in numbers
    for case in [(moment, number, workers)]
]


@pytest.mark.parametrize(("moment", "number", "workers"), CASES)
def test_a_killed_run_goes_on(moment: str, number: int, workers: int, folder: Path) -> None:
    command = job.new(folder, "killed", f"data.num_workers={workers}")
    assert job.train(command, f"faults.kill_at({moment!r}, {number})")[0] == -signal.SIGKILL
    job.resumed(command, job.whole(folder))


@pytest.mark.slow
def test_ten_kills(folder: Path) -> None:
    """Each about a step later than the one before; no row comes twice."""
    command = job.new(folder, "ten", "trainer.checkpoint_every_n_steps=1")
    moments = [("micro-batch", 3), ("update", 2), ("save, between", 2), ("micro-batch", 4)]
    moments.append(("save, writing", 2))
    for moment in moments * 2:
        assert job.train(command, f"faults.kill_at{moment}")[0] == -signal.SIGKILL
    job.resumed(command, job.whole(folder))
    steps = [row["global_step"] for row in job.rows(folder / "ten")]
    assert len(steps) == len(set(steps)) == 14
