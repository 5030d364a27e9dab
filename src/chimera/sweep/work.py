"""A job of a sweep and its state."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from filelock import FileLock

from chimera.rundir.safe_io import make_folder
from chimera.sweep.local import Handle, Start
from chimera.sweep.plan import Job


class State(StrEnum):
    """State of a job in the sweep."""

    WAITING = "waiting"
    ELSEWHERE = "elsewhere"  # another process trains this run
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    STOPPED = "stopped"
    PRUNED = "pruned"  # by a search: saved, and its own command goes on


#: States in which a job is over.
FINISHED = {State.DONE, State.FAILED, State.STOPPED, State.PRUNED}


class Work:
    """A job and its state in this sweep.

    Attributes:
        why: reason of the state; the result if DONE.
        slot: number among the jobs that run at the same time; None without a process.
        handle: process of the job; None without one.
        started: when this sweep started the job (`time.monotonic`); None if it did not.
        seconds: what the job took, if this sweep ran it to its end.
    """

    def __init__(self, job: Job) -> None:
        self.job = job
        self.state = State.WAITING
        self.why = ""
        self.slot: int | None = None
        self.handle: Handle | None = None
        self.started: float | None = None
        self.seconds: float | None = None
        path = job.directory.path.absolute()
        self.log = path / "log.txt"
        self.lock = FileLock(path.parent / ".locks" / f"{path.name}.lock", blocking=False)
        self._log_before = self._log_from = 0
        self._elsewhere_from: object = None

    @property
    def status(self) -> dict[str, Any]:
        return self.job.status()

    @property
    def changed_elsewhere(self) -> bool:
        """Whether another process wrote a status since it was seen; clocks of hosts may differ."""
        return bool(self.status.get("time") != self._elsewhere_from)

    def finish(self) -> None:
        """Change the state to DONE, with the job's result as the reason."""
        if self.started is not None:
            self.seconds = time.monotonic() - self.started
        value = self.job.result().get("metrics", {}).get(self.job.metric)
        self.become(State.DONE, "" if value is None else f"{self.job.metric} {value:.5g}")

    def prepare(self, slot: int, workers: int) -> Start:
        """Write the head of the job's log; returns what to start in slot `slot` of `workers`."""
        make_folder(self.job.directory.path, of=self.job.directory.path)
        with self.log.open("a", encoding="utf-8") as file:
            self._log_before = file.tell()
            overrides = " ".join(self.job.overrides)
            file.write(f"--- {datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC: train.py {overrides}\n")
        self._log_from = self.log.stat().st_size
        trainer = self.job.config["trainer"]
        gpu = trainer["accelerator"] != "cpu"
        return Start(self.job.overrides, self.log, slot, workers, trainer["devices"], gpu)

    def unprepare(self) -> None:
        """Undo `prepare`, because the job cannot be started."""
        if self._log_before:
            os.truncate(self.log, self._log_before)
            return
        self.log.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # it holds a run
            self.log.parent.rmdir()

    def become(self, state: State, why: str = "") -> None:
        """Change the state; release the lock in states without a process of this sweep."""
        if state is State.ELSEWHERE:
            self._elsewhere_from = self.status.get("time")
        self.state, self.why = state, why
        if state in FINISHED or state is State.ELSEWHERE:
            self.handle = self.slot = None
            self.lock.release()

    def reason(self, code: int) -> str:
        """Reason why the job ended unfinished: signal, status.json or last line of the log."""
        if code < 0:
            name = signal.Signals(-code).name
            return f"killed by {name}" + (" (out of memory?)" if name == "SIGKILL" else "")
        status = self.status
        if status.get("state") == "FAILED" and status.get("why"):
            return " ".join(str(status["why"]).split())
        with self.log.open("rb") as file:
            file.seek(self._log_from)
            lines = file.read().decode(errors="replace").split("\n")
        last = [line.strip() for line in lines if line.strip()][-1:]
        return "; ".join([*last, f"exit code {code}"])
