"""Run a sweep's unfinished jobs, each in its own process, and show them in the terminal.

A failed job stops no other job.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from statistics import mean
from types import FrameType

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

from chimera.errors import UserError
from chimera.program import on_stop
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
        self, jobs: Sequence[Job], launcher: Launcher, workers: int, display: Display | None = None
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
            with on_stop(self._stop), self.display.showing(list(self.jobs.values())):
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

    def _stop(self, number: int, frame: FrameType | None) -> None:
        """On the first Ctrl-C, SIGTERM or SIGHUP ask the jobs to save; on the second end them."""
        self.stops += 1
        grace = self.launcher.grace if self.stops == 1 else 0.0
        self._stop_by = time.monotonic() + grace
        if self.stops == 1:
            handles = [job.handle for job in self.jobs.values() if job.handle]
            self.launcher.interrupt(handles)


class Display:
    """Print state changes; in a terminal also show step, loss and remaining time of running jobs.

    Args:
        workers: jobs that run at a time.
        console: output; default stderr.
    """

    def __init__(self, workers: int = 1, console: Console | None = None) -> None:
        self.workers = workers
        console = console or Console(stderr=True)
        self.progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(20),
            MofNCompleteColumn(),
            "loss {task.fields[loss]}",
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
            refresh_per_second=2,
            speed_estimate_period=300,
        )

    @contextmanager
    def showing(self, jobs: Sequence[Job]) -> Iterator[None]:
        """Show these jobs until the block ends."""
        self._tasks: dict[Job, TaskID] = {}
        self._states: dict[Job, State] = {}
        for job in jobs:
            self.add(job)
        with self.progress:
            yield

    def add(self, job: Job) -> None:
        """Show one more job."""
        self._tasks[job] = self.progress.add_task(job.label, visible=False, total=None, loss="")
        self._states[job] = State.WAITING

    def update(self) -> None:
        """Print the changes since the last call, and advance the bars."""
        for job, before in self._states.items():
            running = job.state in (State.RUNNING, State.ELSEWHERE)
            if job.state is not before:
                self._states[job] = job.state
                self._print(job)
                self.progress.update(self._tasks[job], visible=running)
            if running and not self.progress.disable:
                status = job.status()
                loss = f"{status['loss']:.3f}" if isinstance(status.get("loss"), float) else ""
                self.progress.update(
                    self._tasks[job],
                    completed=status.get("step"),
                    total=status.get("max_steps"),
                    loss=loss,
                )

    def _print(self, job: Job) -> None:
        count = f"[{sum(each.state in FINISHED for each in self._tasks)}/{len(self._tasks)}]"
        line = f"{count} {job.label}: {job.state.value}{f': {job.why}' if job.why else ''}"
        if job.state is State.DONE and (left := seconds_left(list(self._tasks), self.workers)):
            line += f" (about {timedelta(seconds=round(left))} left)"
        self.progress.console.print(line, markup=False, highlight=False, soft_wrap=True)


def seconds_left(jobs: Sequence[Job], workers: int) -> float:
    """Seconds until all jobs are over, if each takes as long as the mean of those that have ended.

    0 if no job of this sweep has ended yet.
    """
    took = [job.seconds for job in jobs if job.seconds is not None]
    left = [job for job in jobs if job.state not in FINISHED]
    if not took or not left:
        return 0.0
    now = time.monotonic()
    spent = [0.0 if job.started is None else now - job.started for job in left]
    return sum(max(0.0, mean(took) - seconds) for seconds in spent) / min(workers, len(left))
