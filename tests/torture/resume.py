"""Kill a run at chosen moments and resume it: it ends as the uninterrupted run, bit by bit."""

from __future__ import annotations

import signal
from functools import partial
from pathlib import Path

from tests.torture import faults, job

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


def once(folder: Path, moment: str, number: int, workers: int) -> list[str]:
    """Kill a run once and resume it."""
    command = job.new(folder, "killed", f"data.num_workers={workers}")
    code, _ = job.attempt(command, faults.kill_at(moment, number))
    if code != -signal.SIGKILL:
        return [f"was not killed: exit code {code}"]
    return job.resumed(command, job.whole(folder))


def ten_times(folder: Path) -> list[str]:
    """Kill one run ten times, each time about a step later, then let it end; no row comes twice."""
    command = job.new(folder, "ten", "trainer.checkpoint_every_n_steps=1")
    moments = [("micro-batch", 3), ("update", 2), ("save, between", 2), ("micro-batch", 4)]
    moments.append(("save, writing", 2))
    codes = [job.attempt(command, faults.kill_at(*moment))[0] for moment in moments * 2]
    wrong = [] if codes == [-signal.SIGKILL] * 10 else [f"exit codes {codes}"]
    wrong += job.resumed(command, job.whole(folder))
    steps = [row["global_step"] for row in job.rows(folder / "ten")]
    return wrong + ([] if len(steps) == len(set(steps)) == 14 else [f"rows of steps {steps}"])


CASES = {
    f"kill at {moment} {number}, {workers} workers": partial(
        once, moment=moment, number=number, workers=workers
    )
    for workers in (0, 2)
    for moment, numbers in KILLS.items()
    for number in numbers
} | {"ten kills": ten_times}
