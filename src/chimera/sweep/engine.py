"""Run a sweep's unfinished jobs, each in its own process; a failed job stops no other job."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

from filelock import FileLock, Timeout

from chimera.errors import UserError
from chimera.sweep.local import Handle, Launcher
from chimera.sweep.plan import Job

#: Seconds between two polls of the jobs.
TICK = 0.2


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
        started: whether this sweep has started the job, even if it has failed since.
    """

    def __init__(self, job: Job) -> None:
        self.job = job
        self.state = State.WAITING
        self.why = ""
        self.slot: int | None = None
        self.handle: Handle | None = None
        self.started = False
        path = job.directory.path.absolute()
        self.log = path / "log.txt"
        self.lock = FileLock(path.parent / ".locks" / f"{path.name}.lock", blocking=False)
        self._log_from = 0
        self._elsewhere_from: object = None

    @property
    def status(self) -> dict[str, Any]:
        return self.job.directory.status()

    @property
    def changed_elsewhere(self) -> bool:
        """Whether another process wrote a status since it was seen; clocks of hosts may differ."""
        return bool(self.status.get("time") != self._elsewhere_from)

    def finish(self) -> None:
        """Change the state to DONE, with the job's result as the reason."""
        value = self.job.directory.record().get("metrics", {}).get(self.job.metric)
        self.become(State.DONE, "" if value is None else f"{self.job.metric} {value:.5g}")

    def start(self, launcher: Launcher, slot: int, workers: int) -> None:
        """Start the job's process in slot `slot` of `workers`, its output appended to log.txt."""
        self.job.directory.path.mkdir(parents=True, exist_ok=True)
        with self.log.open("a", encoding="utf-8") as file:
            overrides = " ".join(self.job.overrides)
            file.write(f"--- {datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC: train.py {overrides}\n")
        self._log_from = self.log.stat().st_size
        trainer = self.job.config["trainer"]
        gpus = 0 if trainer["accelerator"] == "cpu" else trainer["devices"]
        self.handle = launcher.start(self.job.overrides, self.log, slot, workers, gpus)
        self.slot, self.started = slot, True

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


class JobDisplay(Protocol):
    """Interface of a display of running jobs."""

    def showing(self, work: Sequence[Work]) -> AbstractContextManager[None]:
        """Show these jobs until the block ends."""

    def add(self, work: Work) -> None:
        """Show one more job."""

    def update(self) -> None:
        """Show the current states of the jobs."""


class Engine:
    """Runs the jobs of one batch.

    Args:
        jobs: jobs of the batch; duplicates run once.
        launcher: starts the jobs.
        workers: number of jobs that run at the same time.
        display: shows the jobs.
    """

    def __init__(
        self, jobs: list[Job], launcher: Launcher, workers: int, display: JobDisplay
    ) -> None:
        self.work: dict[Path, Work] = {}
        for job in jobs:
            self.work.setdefault(job.key, Work(job))
        self.launcher, self.workers, self.display = launcher, launcher.slots(workers), display
        self.stops = 0  # number of stop signals so far
        self._stop_by = float("inf")

    def run(self) -> list[Work]:
        """Run until every job is over; after Ctrl-C until the running jobs are saved."""
        try:
            with self._signals(), self.display.showing(list(self.work.values())):
                while self.feed() or not all(w.state in FINISHED for w in self.work.values()):
                    before = [work.state for work in self.work.values()]
                    for work in self.work.values():
                        if work.state not in FINISHED:
                            self._advance(work)
                    self.display.update()
                    if before == [work.state for work in self.work.values()]:
                        time.sleep(TICK)
        finally:
            for work in self.work.values():
                if work.handle:  # only after an exception in the loop
                    work.handle.kill()
                work.lock.release()
        return list(self.work.values())

    def feed(self) -> bool:
        """Add jobs that are decided while others run; returns whether more will come."""
        return False

    def add(self, job: Job) -> None:
        """Add a job while others run, unless it is one of them."""
        if job.key not in self.work:
            self.work[job.key] = Work(job)
            self.display.add(self.work[job.key])

    def _advance(self, work: Work) -> None:
        if work.handle:
            self._poll(work, work.handle)
        elif self.stops:
            work.become(State.STOPPED, "not started")
        elif self._done(work):
            work.finish()
        elif why := self._blocked(work):
            work.become(State.FAILED, why)
        elif not self._must_wait(work):
            self._start(work)

    def _poll(self, work: Work, handle: Handle) -> None:
        code = handle.poll()
        if code is None:
            if time.monotonic() > self._stop_by:
                handle.kill()
            return
        if work.status.get("state") == "DONE":
            work.finish()
        elif self.stops:
            saved = work.status.get("state") == "STOPPED"
            work.become(State.STOPPED, "saved" if saved else "its last checkpoint is kept")
        elif code == 2 and work.job.directory.is_running():  # another process started the run first
            work.become(State.ELSEWHERE)
        else:
            work.become(State.FAILED, work.reason(code))

    def _done(self, work: Work) -> bool:
        again = work.job.config["overwrite"] and not work.started
        return work.status.get("state") == "DONE" and not again

    def _blocked(self, work: Work) -> str:
        """Reason not to start the job; empty if there is none.

        A prerequisite failed, or another process tried this run since the sweep began and failed.
        """
        for prerequisite in self._prerequisites(work):
            if prerequisite.state is State.FAILED:
                return f"needs {prerequisite.job.label}, which failed"
        status = work.status
        if work.state is not State.ELSEWHERE or status.get("state") != "FAILED":
            return ""
        return f"elsewhere: {status.get('why', 'failed')}" if work.changed_elsewhere else ""

    def _must_wait(self, work: Work) -> bool:
        return any(p.state is not State.DONE for p in self._prerequisites(work))

    def _prerequisites(self, work: Work) -> list[Work]:
        """The jobs of this sweep that have to be done before this one."""
        identities = work.job.prerequisites
        return [other for other in self.work.values() if other.job.identity in identities]

    def _start(self, work: Work) -> None:
        if work.job.directory.is_running():
            work.become(State.ELSEWHERE)
            return
        slot = self._free_slot()
        if slot is None:
            return
        try:
            work.lock.acquire()
        except Timeout:
            work.become(State.ELSEWHERE)
            return
        except NotImplementedError:  # a file system without locks: the run's heartbeat protects it
            pass
        # Another sweep may have finished the run before this one acquired the lock.
        if self._done(work):
            work.finish()
        else:
            try:
                work.start(self.launcher, slot, self.workers)
            except UserError as error:  # Slurm's
                work.become(State.FAILED, str(error))
            else:
                work.become(State.RUNNING)

    def _free_slot(self) -> int | None:
        used = {work.slot for work in self.work.values()}
        return next((slot for slot in range(self.workers) if slot not in used), None)

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """On the first Ctrl-C or SIGTERM ask the jobs to save; on the second end them."""
        numbers = (signal.SIGINT, signal.SIGTERM)
        before = [signal.signal(number, self._stop) for number in numbers]
        try:
            yield
        finally:
            for number, handler in zip(numbers, before, strict=True):
                signal.signal(number, handler)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self.stops += 1
        grace = self.launcher.grace if self.stops == 1 else 0.0
        self._stop_by = time.monotonic() + grace
        for work in self.work.values():
            if work.handle and self.stops == 1:
                work.handle.interrupt()
