"""Jobs in Slurm's queue: their states, results and ends. Does not import torch."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

#: States of an unfinished Slurm job.
QUEUED = {"PENDING", "RUNNING", "SUSPENDED", "CONFIGURING", "COMPLETING", "STOPPED", "SIGNALING"}
QUEUED |= {"REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "RESIZING", "STAGE_OUT", "SPECIAL_EXIT"}
#: Reasons for which a job waits that no other job's end removes.
STUCK = {"PartitionConfig", "PartitionNodeLimit", "PartitionTimeLimit", "BadConstraints"}
#: Seconds between two questions to Slurm, and those that a result may take to be seen here.
EVERY, LAG = 2.0, 15.0


class Queue:
    """States of the user's jobs by squeue, which works without an accounting database."""

    def __init__(self) -> None:
        self._states: dict[str, str] | None = None
        self._reasons: dict[str, str] = {}
        self._read = -EVERY

    def state(self, job_id: str) -> str | None:
        """State of a job, empty if Slurm has forgotten it; None if Slurm does not answer."""
        if time.monotonic() - self._read >= EVERY:
            self._read = time.monotonic()
            listed = output("squeue", "--me", "-h", "-r", "-t", "all", "-o", "%i %T %r")
            rows = [line.split(None, 2) for line in (listed or "").splitlines()]
            self._states = None if listed is None else {row[0]: row[1] for row in rows}
            self._reasons = {row[0]: row[-1] for row in rows}
        return None if self._states is None else self._states.get(job_id, "")

    def reason(self, job_id: str) -> str:
        """Why a job waits, as Slurm says it."""
        return self._reasons.get(job_id, "")


#: One question is for all jobs.
QUEUE = Queue()


class SlurmJob:
    """A submitted job of so many tasks."""

    def __init__(self, job: Any, log: Path, tasks: int = 1) -> None:
        self.job, self.log = job, log
        self.where = f"job {job.job_id}"
        folder = job.paths.folder
        self._results = [folder / f"{job.job_id}_{n}_result.pkl" for n in range(tasks)]
        self._ended: float | None = None  # when it was first seen to have ended without a result
        self._look = -EVERY
        self.over = self._told = False

    def poll(self) -> int | None:
        if time.monotonic() - self._look < EVERY:
            return None
        self._look = time.monotonic()
        code = self._code()
        self.over = code is not None
        return code

    def _code(self) -> int | None:
        if all(path.exists() for path in self._results):
            error = self.job.exception()
            if error is None:
                return next((int(code) for code in self.job.results() if code), 0)
            return self._failed(str(error).splitlines()[0])
        state = QUEUE.state(self.job.job_id)
        if state is None or state in QUEUED:
            self._ended = None
            if state == "PENDING" and QUEUE.reason(self.job.job_id) in STUCK and not self._told:
                self._told = True
                why = QUEUE.reason(self.job.job_id)
                print(f"{self.where} may wait for ever, Slurm says {why}", file=sys.stderr)
            return None
        self._ended = self._ended or time.monotonic()
        if time.monotonic() - self._ended < LAG:
            return None
        ended = state or "and is no longer known to Slurm"
        return self._failed(f"ended {ended}; start the same command again to continue")

    def _failed(self, why: str) -> int:
        with self.log.open("a", encoding="utf-8") as file:
            file.write(f"{self.where}: {why}\n")
        return 1

    def interrupt(self) -> None:
        self.job.cancel(check=False)  # Slurm sends SIGTERM; the run then saves

    def kill(self) -> None:
        self.job.cancel(check=False)


class LocalAllocation(SlurmJob):
    """A job that submitit runs as a process of this machine."""

    def _code(self) -> int | None:
        if not self.job.done():
            return None
        error = self.job.exception()
        return int(self.job.result()) if error is None else self._failed(str(error).splitlines()[0])


def output(*command: str) -> str | None:
    """Output of one of Slurm's commands; None if it fails or is not there."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
