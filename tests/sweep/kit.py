"""Fake jobs without torch: scripts of a few lines that write the files of a run."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from chimera.rundir.directory import RunDir
from chimera.sweep.job import Job
from chimera.sweep.local import Handle, LocalJob, Start
from chimera.sweep.scheduler import Display, Scheduler

#: First lines of a fake job: lock the run and mark it as running, as a real one does.
BEGIN = """
import json, os, socket, sys, time
from pathlib import Path
from chimera.rundir.directory import RunDir
from chimera.errors import UserError
run = RunDir(Path(sys.argv[1]))
try: run.lock()
except UserError: sys.exit(2)
if run.status().get("state") == "DONE" and "overwrite=true" not in sys.argv: sys.exit(0)
with (run.path / "starts").open("a") as file: file.write("x")
run.write_status("RUNNING", step=0, max_steps=9)
"""
DONE = """
(run.path / "run.json").write_text(json.dumps({"metrics": {"val/perplexity": 7.0}}))
run.write_status("DONE")
"""


def job(root: Path, name: str, script: str = "", **config: Any) -> Job:
    """A job whose process runs `script` and is then done."""
    job_config = {
        "overwrite": False,
        "task": {},
        "table": None,
        "trainer": {"accelerator": "cpu", "devices": 1},
        **config,
    }
    overrides = (script, *["overwrite=true"] * job_config["overwrite"])
    return Job(overrides, name, job_config, RunDir(root / name), f"identity of {name}")


class Scripts:
    """Launcher of fake jobs: the first override of a job is its script."""

    grace = 20.0

    def __init__(self, at_once: int | None = 2) -> None:
        self.at_once = at_once
        self.most = 0  # largest number of processes alive at the same time
        self.jobs: list[LocalJob] = []

    def check(self) -> None: ...

    def slots(self, workers: int) -> int:
        return self.at_once or workers

    def room(self, workers: int, unfinished: int) -> int:
        return workers - unfinished

    def start(self, starts: Sequence[Start]) -> list[LocalJob]:
        return [self._start(start) for start in starts]

    def words(self, start: Start) -> list[str]:
        """The script of a job and its arguments after the run's directory."""
        return [BEGIN + start.overrides[0] + DONE, *start.overrides[1:]]

    def _start(self, start: Start) -> LocalJob:
        script, *words = self.words(start)
        command = [sys.executable, "-c", script, str(start.log.parent), *words]
        with start.log.open("ab") as file:
            process = subprocess.Popen(command, stdout=file, stderr=file, start_new_session=True)
        self.jobs.append(LocalJob(process))
        self.most = max(self.most, sum(j.poll() is None for j in self.jobs))
        return self.jobs[-1]

    def interrupt(self, handles: Sequence[Handle]) -> None:
        for handle in handles:
            handle.interrupt()


class Silent(Display):
    """Display that shows nothing and calls `on_update` at every update."""

    def __init__(self, on_update: Any = None) -> None:
        self.on_update = on_update or (lambda: None)

    def showing(self, jobs: Sequence[Job]) -> Any:
        return nullcontext()

    def add(self, job: Job) -> None: ...

    def update(self) -> None:
        self.on_update()


def run(jobs: list[Job], launcher: Any = None, display: Any = None) -> dict[str, Job]:
    """Run the jobs to their end; return them by label."""
    engine = Scheduler(jobs, launcher or Scripts(), 1, display or Silent())
    return {job.label: job for job in engine.run()}


def starts(root: Path, name: str) -> int:
    """Number of times that a job's process was started."""
    file = root / name / "starts"
    return len(file.read_text()) if file.exists() else 0


def status(root: Path, name: str, **fields: Any) -> None:
    """Write status.json of a run as another process would write it."""
    (root / name).mkdir(parents=True, exist_ok=True)
    (root / name / "status.json").write_text(json.dumps(fields))
