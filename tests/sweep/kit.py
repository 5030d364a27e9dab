"""Jobs without torch: processes of a line or two that leave what a run leaves."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from chimera.rundir.directory import RunDir
from chimera.sweep.engine import Engine, Work
from chimera.sweep.local import LocalJob
from chimera.sweep.plan import Job

#: What a stand-in does first: says that it runs, as `RunDir.start` does.
BEGIN = """
import json, os, socket, sys, time
from pathlib import Path
from chimera.rundir.directory import RunDir
run = RunDir(Path(sys.argv[1]))
with (run.path / "starts").open("a") as file: file.write("x")
run.write_status("RUNNING", step=0, max_steps=9)
"""
DONE = """
(run.path / "run.json").write_text(json.dumps({"metrics": {"val/perplexity": 7.0}}))
run.write_status("DONE")
"""


def job(root: Path, name: str, script: str = "", **config: Any) -> Job:
    """A job whose process runs `script` and is then done."""
    made = {
        "overwrite": False,
        "task": {},
        "table": None,
        "trainer": {"accelerator": "cpu", "devices": 1},
        **config,
    }
    return Job((script,), name, made, RunDir(root / name), f"identity of {name}")


class Scripts:
    """A launcher of stand-ins: a job's only override is its script."""

    grace = 20.0

    def __init__(self, at_once: int = 2) -> None:
        self.at_once = at_once
        self.most = 0  # processes that were alive together
        self.jobs: list[LocalJob] = []

    def check(self) -> None: ...

    def slots(self, workers: int) -> int:
        return self.at_once

    def start(
        self, overrides: Sequence[str], log: Path, slot: int, workers: int, gpus: int
    ) -> LocalJob:
        with log.open("ab") as file:
            process = subprocess.Popen(
                [sys.executable, "-c", BEGIN + overrides[0] + DONE, str(log.parent)],
                stdout=file, stderr=file, start_new_session=True,
            )  # fmt: skip
        self.jobs.append(LocalJob(process))
        self.most = max(self.most, sum(j.poll() is None for j in self.jobs))
        return self.jobs[-1]


class Silent:
    """A display that shows nothing, and calls `each` at every update."""

    def __init__(self, each: Any = None) -> None:
        self.each = each or (lambda: None)

    def showing(self, work: Sequence[Work]) -> Any:
        return nullcontext()

    def update(self) -> None:
        self.each()


def run(jobs: list[Job], launcher: Any = None, display: Any = None) -> dict[str, Work]:
    """The work of each job by its label, when all are over."""
    engine = Engine(jobs, launcher or Scripts(), 1, display or Silent())
    return {work.job.label: work for work in engine.run()}


def starts(root: Path, name: str) -> int:
    """How often a job's process was started."""
    file = root / name / "starts"
    return len(file.read_text()) if file.exists() else 0


def status(root: Path, name: str, **what: Any) -> None:
    """Leave a status as another process would have."""
    (root / name).mkdir(parents=True, exist_ok=True)
    (root / name / "status.json").write_text(json.dumps(what))
