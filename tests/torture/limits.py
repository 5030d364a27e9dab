"""What is left out when the policy is to skip; a disk that fills up at any write."""

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
    """One bad step is left out and counted; the weights of that step are those of before."""
    to, log = folder / "skip", folder / "skip.log"
    shutil.rmtree(to, ignore_errors=True)
    more = ("guard=skip", "guard.max_skips=2", "trainer.checkpoint_every_n_steps=1")
    command = job.words(folder, to, *more, "trainer.checkpoint_keep=99")
    code = job.train(command, log, lambda: Poison("loss", math.nan).plant())
    if code:
        return [f"exit code {code}: {log.read_text()[-300:]}"]
    record = json.loads((to / "run.json").read_text())
    found = [] if record["skipped"] == {"not_finite": 1, "scaler": 0} else [str(record["skipped"])]
    before, after, later = (
        torch.load(to / f"checkpoints/rolling-{n}.ckpt", weights_only=True)["state_dict"]
        for n in (5, 6, 7)
    )
    # A function of the step, and a buffer that follows it, move on all the same.
    same = [n for n in before if "alpha" not in n and "warm" not in n]
    found += [f"{n} changed" for n in same if not torch.equal(before[n], after[n])]
    found += [] if not job.equal(after, later) else ["nothing learnt after it"]
    found += [] if len(job.rows(to)) == 14 else ["rows are missing"]
    found += [] if job.rows(to)[5]["loss"] == "nan" else ["the row does not say so"]
    return found


def too_many(folder: Path) -> list[str]:
    """Three bad steps are one more than is skipped."""
    to, log = folder / "many", folder / "many.log"
    shutil.rmtree(to, ignore_errors=True)
    command = job.words(folder, to, "guard=skip", "guard.max_skips=2", "optim.lr=1e-3")
    every = Poison("loss", math.inf, samples=[])
    every.hits = lambda batch: True  # type: ignore[method-assign]
    code = job.train(command, log, every.plant)
    reports = sorted(p.name for p in to.glob("nan_report-*.json"))
    found = [] if code == 1 and "2 steps were skipped before" in log.read_text() else ["no stop"]
    return found + ([] if len(reports) == 3 else [f"reports {reports}"])


def full(folder: Path, what: str, number: int) -> list[str]:
    """The n-th write finds the disk full: one line, the rest intact; then there is room again."""
    reference, to, log = whole(folder), folder / "full", folder / "full.log"
    shutil.rmtree(to, ignore_errors=True)
    log.unlink(missing_ok=True)
    command = job.words(folder, to)
    code = job.train(command, log, faults.full_at(what, number))
    text = log.read_text()
    found = [] if code == 2 else [f"exit code {code}"]
    found += [] if text.count("error: no space left") == 1 else [text[-300:]]
    found += ["a traceback"] if "Traceback" in text else []
    left = [p.name for p in to.rglob(".*") if p.name != ".lock"]
    found += [f"left over: {left}"] if left else []
    json.loads((to / "status.json").read_text())
    csv = (to / "steps.csv").read_bytes()
    found += [] if csv.endswith(b"\n") else ["a torn row"]
    code = job.train(command, log)
    return found + (job.differences(to, reference) if code == 0 else [f"then exit code {code}"])


def crash(folder: Path) -> list[str]:
    """An exception in a step: the state of before it is kept, and gone on from."""
    reference, to, log = whole(folder), folder / "crash", folder / "crash.log"
    shutil.rmtree(to, ignore_errors=True)
    command = job.words(folder, to)
    code = job.train(command, log, faults.raise_at(14))  # in the 8th step; the 6th is on disk
    found = [] if code == 1 else [f"exit code {code}"]
    log.unlink()
    code = job.train(command, log)
    if "emergency.ckpt at step 7" not in log.read_text():
        found.append(log.read_text()[-300:])
    return found + (job.differences(to, reference) if code == 0 else [f"then exit code {code}"])


DISK = [("checkpoint", 1), ("checkpoint", 4), ("row", 5), ("sidecar", 3)]


def count(folder: Path) -> tuple[int, int]:
    """A full disk at four writes; skipping, and too much of it."""
    good = 0
    for what, number in DISK:
        found = full(folder, what, number)
        good += not found
        print(f"disk  full at {what} {number}: {'; '.join(found) or 'held, equal'}", flush=True)
    for case in (skip, too_many, crash):
        found = case(folder)
        good += not found
        print(f"skip  {case.__name__}: {'; '.join(found) or 'held'}", flush=True)
    return good, len(DISK) + 3
