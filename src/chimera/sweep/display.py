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

from chimera.sweep.work import FINISHED, State, Work


class Display:
    """Print state changes; in a terminal also show step, loss and remaining time of running jobs.

    Args:
        workers: jobs that run at a time.
        console: output; default stderr.
    """

    def __init__(self, workers: int = 1, console: Console | None = None) -> None:
        self.workers = workers
        console = console or Console(stderr=True)
        label, loss = TextColumn("{task.description}", markup=False), "loss {task.fields[loss]}"
        columns = (label, BarColumn(20), MofNCompleteColumn(), loss, TimeRemainingColumn())
        self.progress = Progress(
            *columns, console=console, transient=True, disable=not console.is_terminal,
            refresh_per_second=2, speed_estimate_period=300,
        )  # fmt: skip

    @contextmanager
    def showing(self, work: Sequence[Work]) -> Iterator[None]:
        """Show these jobs until the block ends."""
        self._tasks: dict[Work, TaskID] = {}
        self._states: dict[Work, State] = {}
        for each in work:
            self.add(each)
        with self.progress:
            yield

    def add(self, work: Work) -> None:
        """Show one more job."""
        task = self.progress.add_task(work.job.label, visible=False, total=None, loss="")
        self._tasks[work], self._states[work] = task, State.WAITING

    def update(self) -> None:
        """Print the changes since the last call, and advance the bars."""
        for work, before in self._states.items():
            running = work.state in (State.RUNNING, State.ELSEWHERE)
            if work.state is not before:
                self._states[work] = work.state
                self._print(work)
                self.progress.update(self._tasks[work], visible=running)
            if running and not self.progress.disable:
                status = work.status
                loss = f"{status['loss']:.3f}" if isinstance(status.get("loss"), float) else ""
                step, total = status.get("step"), status.get("max_steps")
                self.progress.update(self._tasks[work], completed=step, total=total, loss=loss)

    def _print(self, work: Work) -> None:
        count = f"[{sum(w.state in FINISHED for w in self._tasks)}/{len(self._tasks)}]"
        line = f"{count} {work.job.label}: {work.state.value}{f': {work.why}' if work.why else ''}"
        if work.state is State.DONE and (left := seconds_left(list(self._tasks), self.workers)):
            line += f" (about {timedelta(seconds=round(left))} left)"
        self.progress.console.print(line, markup=False, highlight=False, soft_wrap=True)


def seconds_left(work: Sequence[Work], workers: int) -> float:
    """Seconds until all jobs are over, if each takes as long as the mean of those that have ended.

    0 if no job of this sweep has ended yet.
    """
    took = [each.seconds for each in work if each.seconds is not None]
    left = [each for each in work if each.state not in FINISHED]
    if not took or not left:
        return 0.0
    now, each_takes = time.monotonic(), mean(took)
    begun = [now - each.started for each in left if each.started is not None]
    rest = each_takes * (len(left) - len(begun)) + sum(max(0.0, each_takes - s) for s in begun)
    return rest / min(workers, len(left))
