"""Show a sweep in the terminal: a line for each change of state, below them the running jobs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from chimera.sweep.engine import OVER, State, Work


class Display:
    """Lines for every output; in a terminal also step, loss and remaining time of running jobs."""

    def __init__(self, console: Console | None = None) -> None:
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
        add = self.progress.add_task
        self._tasks = {one: add(one.job.label, visible=False, total=None, loss="") for one in work}
        self._states = dict.fromkeys(work, State.WAITING)
        with self.progress:
            yield

    def update(self) -> None:
        """Print the changes since the last call, and advance the bars."""
        for one, before in self._states.items():
            live = one.state in (State.RUNNING, State.ELSEWHERE)
            if one.state is not before:
                self._states[one] = one.state
                self._print(one)
                self.progress.update(self._tasks[one], visible=live)
            if live and not self.progress.disable:
                at = one.status
                loss = f"{at['loss']:.3f}" if isinstance(at.get("loss"), float) else ""
                step, total = at.get("step"), at.get("max_steps")
                self.progress.update(self._tasks[one], completed=step, total=total, loss=loss)

    def _print(self, one: Work) -> None:
        count = f"[{sum(work.state in OVER for work in self._tasks)}/{len(self._tasks)}]"
        line = f"{count} {one.job.label}: {one.state.value}{f': {one.why}' if one.why else ''}"
        self.progress.console.print(line, markup=False, highlight=False, soft_wrap=True)
