"""Run a sweep's unfinished jobs, each in its own process; a failed job stops no other job."""

from __future__ import annotations

import itertools
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import FrameType
from typing import Protocol

from filelock import Timeout

from chimera.errors import UserError
from chimera.sweep.local import Handle, Launcher
from chimera.sweep.plan import Job
from chimera.sweep.work import FINISHED, State, Work

#: Seconds between two polls of the jobs.
TICK = 0.2


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
        self._ready: list[Work] = []  # locked, to be started together
        self._places = 0  # number of jobs that may be added to them
        self.stops = 0  # number of stop signals so far
        self._stop_by = float("inf")

    def run(self) -> list[Work]:
        """Run until every job is over; after Ctrl-C until the running jobs are saved."""
        try:
            with self._signals(), self.display.showing(list(self.work.values())):
                while self.feed() or not all(w.state in FINISHED for w in self.work.values()):
                    before = [work.state for work in self.work.values()]
                    unfinished = sum(work.handle is not None for work in self.work.values())
                    self._places = self.launcher.room(self.workers, unfinished)
                    for work in self.work.values():
                        if work.state not in FINISHED:
                            self._advance(work)
                    self._start_ready()
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
        again = work.job.config["overwrite"] and work.started is None
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
        if self._places <= 0:
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
            self._places -= 1
            self._ready.append(work)

    def _start_ready(self) -> None:
        """Start the jobs that can start.

        Raises:
            UserError: none can be started, and none was before.
        """
        ready, self._ready = self._ready, []
        if not ready:
            return
        used = {work.slot for work in self.work.values()}
        free = (slot for slot in itertools.count() if slot not in used)
        starts = []
        for work in ready:
            work.slot = next(free)
            starts.append(work.prepare(work.slot, self.workers))
        handles = self.launcher.start(starts)
        refused = [handle for handle in handles if isinstance(handle, UserError)]
        nothing = len(refused) == len(ready) and all(w.started is None for w in self.work.values())
        for work, handle in zip(ready, handles, strict=True):
            if isinstance(handle, UserError):
                if nothing:
                    work.unprepare()
                work.become(State.FAILED, str(handle))
            else:
                work.handle = handle
                work.started = time.monotonic()
                work.become(State.RUNNING)
        if nothing:
            raise refused[0]
        if self.stops:  # asked to while they were started
            self.launcher.interrupt([work.handle for work in ready if work.handle])

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
        if self.stops == 1:
            handles = [work.handle for work in self.work.values() if work.handle]
            self.launcher.interrupt(handles)
