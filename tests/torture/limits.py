"""Skipped steps under guard=skip, a full disk at any write, an exception in a step."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import torch

from tests.torture import faults, job
from tests.torture.nan import Poison
from tests.torture.resume import whole


def skip(folder: Path) -> list[str]:
    """Check that one bad step is skipped and counted and does not change the weights."""
    to, log = folder / "skip", folder / "skip.log"
    shutil.rmtree(to, ignore_errors=True)
    more = ("guard=skip", "guard.max_skips=2", "trainer.checkpoint_every_n_steps=1")
    command = job.arguments(folder, to, *more, "trainer.checkpoint_keep=99")
    code = job.train(command, log, lambda: Poison("loss", math.nan).plant())
    if code:
        return [f"exit code {code}: {log.read_text()[-300:]}"]
    record = json.loads((to / "run.json").read_text())
    wrong = [] if record["skipped"] == {"not_finite": 1, "scaler": 0} else [str(record["skipped"])]
    before, after, later = (
        torch.load(to / f"checkpoints/rolling-{n}.ckpt", weights_only=True)["state_dict"]
        for n in (5, 6, 7)
    )
    # α and the warm-up buffer are functions of the step and change in a skipped step too.
    same = [n for n in before if "alpha" not in n and "warm" not in n]
    wrong += [f"{n} changed" for n in same if not torch.equal(before[n], after[n])]
    wrong += [] if not job.equal(after, later) else ["weights do not change in the next step"]
    wrong += [] if len(job.rows(to)) == 14 else ["rows are missing"]
    wrong += [] if job.rows(to)[5]["loss"] == "nan" else ["the row of the step has no nan"]
    return wrong


def too_many(folder: Path) -> list[str]:
    """Check that the third bad step stops a run that may skip two."""
    to, log = folder / "many", folder / "many.log"
    shutil.rmtree(to, ignore_errors=True)
    command = job.arguments(folder, to, "guard=skip", "guard.max_skips=2", "optim.lr=1e-3")
    every = Poison("loss", math.inf, samples=[])
    every.hits = lambda batch: True  # type: ignore[method-assign]
    code = job.train(command, log, every.plant)
    reports = sorted(p.name for p in to.glob("nan_report-*.json"))
    wrong = [] if code == 1 and "2 steps were skipped before" in log.read_text() else ["no stop"]
    return wrong + ([] if len(reports) == 3 else [f"reports {reports}"])


def full(folder: Path, file: str, number: int) -> list[str]:
    """Check that a full disk at the n-th write of a file gives one line and damages no other file.

    Then the run resumes with free space and ends with the numbers of the uninterrupted run.
    """
    reference, to, log = whole(folder), folder / "full", folder / "full.log"
    shutil.rmtree(to, ignore_errors=True)
    log.unlink(missing_ok=True)
    command = job.arguments(folder, to)
    code = job.train(command, log, faults.full_at(file, number))
    text = log.read_text()
    wrong = [] if code == 2 else [f"exit code {code}"]
    wrong += [] if text.count("error: no space left") == 1 else [text[-300:]]
    wrong += ["a traceback"] if "Traceback" in text else []
    temporary = [p.name for p in to.rglob(".*") if p.name != ".lock"]
    wrong += [f"temporary files: {temporary}"] if temporary else []
    json.loads((to / "status.json").read_text())
    csv = (to / "steps.csv").read_bytes()
    wrong += [] if csv.endswith(b"\n") else ["a torn row"]
    code = job.train(command, log)
    return wrong + (job.differences(to, reference) if code == 0 else [f"then exit code {code}"])


def crash(folder: Path) -> list[str]:
    """Check that after an exception in a step the run resumes from the state before the step."""
    reference, to, log = whole(folder), folder / "crash", folder / "crash.log"
    shutil.rmtree(to, ignore_errors=True)
    command = job.arguments(folder, to)
    code = job.train(command, log, faults.raise_at(14))  # in step 8; step 6 is saved
    wrong = [] if code == 1 else [f"exit code {code}"]
    log.unlink()
    code = job.train(command, log)
    if "emergency.ckpt at step 7" not in log.read_text():
        wrong.append(log.read_text()[-300:])
    return wrong + (job.differences(to, reference) if code == 0 else [f"then exit code {code}"])


DISK = [("checkpoint", 1), ("checkpoint", 4), ("row", 5), ("sidecar", 3)]


def count(folder: Path) -> tuple[int, int]:
    """Run all cases of this file; return the number that passed and the number of all."""
    good = 0
    for file, number in DISK:
        wrong = full(folder, file, number)
        good += not wrong
        print(f"disk  full at {file} {number}: {'; '.join(wrong) or 'passed, equal'}", flush=True)
    for case in (skip, too_many, crash):
        wrong = case(folder)
        good += not wrong
        print(f"skip  {case.__name__}: {'; '.join(wrong) or 'passed'}", flush=True)
    return good, len(DISK) + 3
