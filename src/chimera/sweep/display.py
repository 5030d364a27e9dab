"""Show a sweep in the terminal: a line per change of state, and bars for the running jobs."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from statistics import mean

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

from chimera.sweep.job import FINISHED, Job, State


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
