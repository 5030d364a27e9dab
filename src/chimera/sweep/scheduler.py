"""Run a sweep's unfinished jobs, each in its own process; a failed job stops no other job."""

from __future__ import annotations

import itertools
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from chimera.errors import UserError
from chimera.program import stop_signals
from chimera.sweep.display import Display
from chimera.sweep.job import FINISHED, Job, State
from chimera.sweep.local import Handle, Launcher

#: Seconds between two polls of the jobs.
TICK = 0.2


class Scheduler:
    """Runs the jobs of a sweep.

    Args:
        jobs: of the sweep; duplicates run once.
        launcher: starts the jobs.
        workers: number of jobs that run at the same time.
        display: shows the jobs; None: in the terminal.
    """

    def __init__(
        self,
        jobs: Sequence[Job],
        launcher: Launcher,
        workers: int,
        display: Display | None = None,
    ) -> None:
        self.jobs: dict[Path, Job] = {}
        for job in jobs:
            self.jobs.setdefault(job.key, job)
        self.launcher = launcher
        self.workers = launcher.slots(workers)
        self.display = display or Display(self.workers)
        self._ready: list[Job] = []  # to be started together
        self._places = 0  # number of jobs that may be added to them
        self.stops = 0  # number of stop signals so far
        self._stop_by = float("inf")

    def run(self) -> list[Job]:
        """Run until every job is over; after Ctrl-C until the running jobs are saved."""
        try:
            with self._signals(), self.display.showing(list(self.jobs.values())):
                while self.feed() or not all(j.state in FINISHED for j in self.jobs.values()):
                    before = [job.state for job in self.jobs.values()]
                    unfinished = sum(job.handle is not None for job in self.jobs.values())
                    self._places = self.launcher.room(self.workers, unfinished)
                    for job in self.jobs.values():
                        if job.state not in FINISHED:
                            self._advance(job)
                    self._start_ready()
                    self.display.update()
                    if before == [job.state for job in self.jobs.values()]:
                        time.sleep(TICK)
        finally:
            for job in self.jobs.values():
                if job.handle:  # only after an exception in the loop
                    job.handle.kill()
        return list(self.jobs.values())

    def feed(self) -> bool:
        """Add jobs that are decided while others run; returns whether more will come."""
        return False

    def add(self, job: Job) -> None:
        """Add a job while others run, unless it is one of them."""
        if job.key not in self.jobs:
            self.jobs[job.key] = job
            self.display.add(job)

    def _advance(self, job: Job) -> None:
        if job.handle:
            self._poll(job, job.handle)
        elif self.stops:
            job.become(State.STOPPED, "not started")
        elif self._done(job):
            job.finish()
        elif why := self._blocked(job):
            job.become(State.FAILED, why)
        elif any(needed.state is not State.DONE for needed in self._prerequisites(job)):
            return
        elif job.directory.is_running():
            job.become(State.ELSEWHERE)
        elif self._places > 0:
            self._places -= 1
            self._ready.append(job)

    def _poll(self, job: Job, handle: Handle) -> None:
        code = handle.poll()
        if code is None:
            if time.monotonic() > self._stop_by:
                handle.kill()
            return
        if job.status().get("state") == "DONE":
            job.finish()
        elif self.stops:
            saved = job.status().get("state") == "STOPPED"
            kept = any(job.directory.checkpoints.glob("*.ckpt"))
            unsaved = "its last checkpoint is kept" if kept else "it has no checkpoint yet"
            job.become(State.STOPPED, "saved" if saved else unsaved)
        elif code == 2 and (job.directory.is_running() or job.directory.is_locked()):
            job.become(State.ELSEWHERE)
        else:
            job.become(State.FAILED, job.reason(code))

    def _done(self, job: Job) -> bool:
        again = job.config["overwrite"] and job.started is None
        return job.status().get("state") == "DONE" and not again

    def _blocked(self, job: Job) -> str:
        """Reason not to start the job; empty if there is none.

        A prerequisite failed, or another process tried this run since the sweep began and failed.
        """
        for needed in self._prerequisites(job):
            if needed.state is State.FAILED:
                return f"needs {needed.label}, which failed"
        status = job.status()
        if job.state is not State.ELSEWHERE or status.get("state") != "FAILED":
            return ""
        return f"elsewhere: {status.get('why', 'failed')}" if job.changed_elsewhere else ""

    def _prerequisites(self, job: Job) -> list[Job]:
        """The jobs of this sweep that have to be done before this one."""
        return [other for other in self.jobs.values() if other.identity in job.prerequisites]

    def _start_ready(self) -> None:
        """Start the jobs that can start.

        Raises:
            UserError: none can be started, and none was before.
        """
        ready = self._ready
        self._ready = []
        if not ready:
            return
        used = {job.slot for job in self.jobs.values()}
        free = (slot for slot in itertools.count() if slot not in used)
        starts = [job.prepare(slot, self.workers) for job, slot in zip(ready, free, strict=False)]
        handles = self.launcher.start(starts)
        refused = [handle for handle in handles if isinstance(handle, UserError)]
        nothing = len(refused) == len(ready) and all(
            job.started is None for job in self.jobs.values()
        )
        for job, handle in zip(ready, handles, strict=True):
            if not isinstance(handle, UserError):
                job.begin(handle)
                continue
            if nothing:
                job.unprepare()
            job.become(State.FAILED, str(handle))
        if nothing:
            raise refused[0]
        if self.stops:  # asked to while they were started
            self.launcher.interrupt([job.handle for job in ready if job.handle])

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """On the first Ctrl-C, SIGTERM or SIGHUP ask the jobs to save; on the second end them."""
        before = {number: signal.signal(number, self._stop) for number in stop_signals()}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self.stops += 1
        grace = self.launcher.grace if self.stops == 1 else 0.0
        self._stop_by = time.monotonic() + grace
        if self.stops == 1:
            handles = [job.handle for job in self.jobs.values() if job.handle]
            self.launcher.interrupt(handles)
