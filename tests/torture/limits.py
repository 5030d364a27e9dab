"""Skipped steps under guard=skip, a full disk at any write, an exception in a step."""

from __future__ import annotations

import json
import math
from functools import partial
from pathlib import Path

from tests.torture import faults, job
from tests.torture.nan import Poison


def skip(folder: Path) -> list[str]:
    """One bad step is skipped and counted and does not change the weights."""
    more = ("guard=skip", "guard.max_skips=2", "trainer.checkpoint_every_n_steps=1")
    command = job.new(folder, "skip", *more, "trainer.checkpoint_keep=99")
    code, said = job.attempt(command, Poison("loss", math.nan).plant)
    if code:
        return [f"exit code {code}: {said[-300:]}"]
    run = folder / "skip"
    skipped = json.loads((run / "run.json").read_text())["skipped"]
    before, after, later = (job.load(run, f"rolling-{n}")["state_dict"] for n in (5, 6, 7))
    # α and the warm-up buffer are functions of the step and change in a skipped step too.
    same = [n for n in before if "alpha" not in n and "warm" not in n]
    rows = job.rows(run)
    held = {
        f"counted {skipped}": skipped == {"not_finite": 1, "scaler": 0},
        "the step changed weights": all(job.equal(before[n], after[n]) for n in same),
        "the next step changes none": not job.equal(after, later),
        "rows are missing": len(rows) == 14,
        "the row of the step has no nan": rows[5]["loss"] == "nan",
    }
    return [name for name, good in held.items() if not good]


def too_many(folder: Path) -> list[str]:
    """The third bad step stops a run that may skip two."""
    command = job.new(folder, "many", "guard=skip", "guard.max_skips=2", "optim.lr=1e-3")
    every = Poison("loss", math.inf, samples=[])
    every.hits = lambda batch: True  # type: ignore[method-assign]
    code, said = job.attempt(command, every.plant)
    wrong = [] if code == 1 and "2 steps were skipped before" in said else ["no stop"]
    reports = len(list((folder / "many").glob("nan_report-*.json")))
    return wrong + ([] if reports == 3 else [f"{reports} reports"])


def full(folder: Path, file: str, number: int) -> list[str]:
    """A full disk gives one line and damages no other file; with free space the run goes on."""
    command, run = job.new(folder, "full"), folder / "full"
    code, said = job.attempt(command, faults.full_at(file, number))
    json.loads((run / "status.json").read_text())
    held = {
        f"exit code {code}": code == 2,
        said[-300:]: said.count("error: no space left") == 1 and "Traceback" not in said,
        "temporary files": not [p for p in run.rglob(".*") if p.name != ".lock"],
        "a torn row": (run / "steps.csv").read_bytes().endswith(b"\n"),
    }
    wrong = [name for name, good in held.items() if not good]
    return wrong + job.resumed(command, job.whole(folder))


def crash(folder: Path) -> list[str]:
    """After an exception in a step the run resumes from the state before the step."""
    command = job.new(folder, "crash")
    code, _ = job.attempt(command, faults.raise_at(14))  # in step 8; step 6 is saved
    wrong = [] if code == 1 else [f"exit code {code}"]
    return wrong + job.resumed(command, job.whole(folder), says="emergency.ckpt at step 7")


DISK = [("checkpoint", 1), ("checkpoint", 4), ("row", 5), ("sidecar", 3)]
CASES = {f"full at {file} {n}": partial(full, file=file, number=n) for file, n in DISK}
CASES |= {"a step skipped": skip, "too many skipped": too_many, "an exception": crash}
