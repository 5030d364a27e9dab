"""R1, R2: kill a run at chosen moments, resume it, compare it bitwise with an uninterrupted run."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path

from tests.torture import faults, job

#: An epoch has 7 micro-batches: 1, 3, 5 are within an accumulation, 7, 14, 21 end an epoch.
KILLS: list[tuple[str, int]] = [
    *(("micro-batch", n) for n in (1, 2, 3, 6, 7, 8, 13, 14, 15, 21, 22, 25)),
    *(("update", n) for n in (5, 9)),
    *(("row", n) for n in (1, 4, 7)),
    *(("validation", n) for n in (1, 2, 3)),
    *(("save, writing", n) for n in (1, 2, 4, 5, 6)),
    *(("save, between", n) for n in (2, 5)),
    *(("save, named", n) for n in (3, 6)),
    ("test", 1),
]
WORKERS = (0, 2)


def whole(folder: Path) -> Path:
    """Directory of the uninterrupted run, which is trained at the first call."""
    to = folder / "whole"
    if not (to / "run.json").exists():
        code = job.train(job.arguments(folder, to), folder / "whole.log")
        assert code == 0, (folder / "whole.log").read_text()
    return to


def single(folder: Path, moment: str, number: int, workers: int) -> list[str]:
    """Kill a run once and resume it; return what differs from the uninterrupted run."""
    reference, to = whole(folder), folder / "killed"
    shutil.rmtree(to, ignore_errors=True)
    log = folder / "killed.log"
    log.unlink(missing_ok=True)
    command = job.arguments(folder, to, f"data.num_workers={workers}")
    code = job.train(command, log, faults.kill_at(moment, number))
    if code != -signal.SIGKILL:
        return [f"was not killed: exit code {code}"]
    code = job.train(command, log)
    if code:
        return [f"did not resume: exit code {code}: {log.read_text()[-300:]}"]
    return job.differences(to, reference)


def r1(folder: Path) -> tuple[int, int]:
    """Run sixty single kills; return the number that passed and the number of all."""
    good = 0
    cases = [(m, n, w) for w in WORKERS for m, n in KILLS]
    for moment, number, workers in cases:
        wrong = single(folder, moment, number, workers)
        good += not wrong
        print(
            f"R1  {moment} {number}, {workers} workers: {', '.join(wrong) or 'equal'}", flush=True
        )
    return good, len(cases)


def r2(folder: Path) -> tuple[int, int]:
    """Kill one run ten times, each time a little later, then let it end; return passed and 1."""
    reference, to, log = whole(folder), folder / "ten", folder / "ten.log"
    shutil.rmtree(to, ignore_errors=True)
    command = job.arguments(folder, to, "trainer.checkpoint_every_n_steps=1")
    # Each attempt gets about one step further than the one before.
    attempts = (
        ("micro-batch", 3),
        ("update", 2),
        ("save, between", 2),
        ("micro-batch", 4),
        ("save, writing", 2),
    )
    kills = 0
    for moment, number in attempts * 2:
        kills += job.train(command, log, faults.kill_at(moment, number)) == -signal.SIGKILL
    code = job.train(command, log)
    wrong = [] if code == 0 else [f"exit code {code}"]
    wrong += job.differences(to, reference)
    steps = [int(row["global_step"]) for row in job.rows(to)]
    doubled = len(steps) - len(set(steps))
    print(f"R2  {kills} kills, {len(steps)} rows, {doubled} doubled: {', '.join(wrong) or 'equal'}")
    validations = json.loads((to / "run.json").read_text())["validations"]
    return int(kills == 10 and not wrong and len(validations) == 2), 1
