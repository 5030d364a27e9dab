"""The sweep in the terminal: a live table, or a line per change where output is no terminal."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.live import Live
from rich.table import Table

from chimera.sweep.engine import OVER, State, Work

COLOURS = {
    State.WAITING: "dim",
    State.ELSEWHERE: "cyan",
    State.RUNNING: "yellow",
    State.DONE: "green",
    State.FAILED: "red",
    State.STOPPED: "magenta",
}
#: Rows that a full terminal keeps first.
FIRST = (State.RUNNING, State.ELSEWHERE, State.FAILED, State.STOPPED, State.WAITING, State.DONE)


class Board:
    """Shows jobs: their state, step, loss and the time they still take."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(stderr=True)
        self._work: Sequence[Work] = ()
        self._said: dict[Work, State] = {}
        self._pace: dict[Work, tuple[float, int]] = {}
        self._live: Live | None = None
        self._drawn = 0.0

    @contextmanager
    def showing(self, work: Sequence[Work]) -> Iterator[None]:
        """While the jobs are at work."""
        self._work, self._said = work, {}
        if not self.console.is_terminal:
            yield
            return
        with Live(console=self.console, auto_refresh=False, vertical_overflow="crop") as self._live:
            try:
                yield
            finally:
                self._live.update(self.table(everything=True), refresh=True)
                self._live = None

    def update(self) -> None:
        """Draw anew, twice a second at most; or say what has changed."""
        if self._live is not None:
            now = time.monotonic()
            if now - self._drawn > 0.5:
                self._drawn = now
                self._live.update(self.table(), refresh=True)
            return
        for work in self._work:
            if self._said.get(work, State.WAITING) is not work.state:
                self._said[work] = work.state
                self._say(work)

    def table(self, *, everything: bool = False) -> Table:
        """The jobs as rows; those that do not fit the terminal are counted in the caption."""
        over = sum(work.state in OVER for work in self._work)
        room = len(self._work) if everything else max(3, self.console.height - 7)
        chosen = sorted(self._work, key=lambda work: FIRST.index(work.state))[:room]
        hidden = len(self._work) - len(chosen)
        failed = sum(work.state is State.FAILED for work in self._work)
        table = Table(
            caption=f"{over} of {len(self._work)} over"
            + (f", {failed} failed" if failed else "")
            + (f"; {hidden} more not shown" if hidden else ""),
            caption_justify="left",
        )
        table.add_column("job", overflow="ellipsis", no_wrap=True, ratio=1)
        for name in ("state", "step", "loss", "left"):
            table.add_column(name, justify="left" if name == "state" else "right", no_wrap=True)
        for work in self._work:
            if work in chosen:
                table.add_row(*self._row(work), style=COLOURS[work.state])
        return table

    def _row(self, work: Work) -> tuple[str, ...]:
        status = work.status if work.state is not State.WAITING else {}
        step, most, loss = status.get("step"), status.get("max_steps"), status.get("loss")
        return (
            work.job.label,
            work.state.value,
            f"{step}/{most}" if step is not None and most else "",
            f"{loss:.3f}" if isinstance(loss, float) else "",
            self._left(work, step, most),
        )

    def _left(self, work: Work, step: int | None, most: int | None) -> str:
        """From the pace since we first saw the job move; it may have been resumed before."""
        if work.state not in (State.RUNNING, State.ELSEWHERE) or not step or not most:
            return ""
        now = time.monotonic()
        since, first = self._pace.setdefault(work, (now, step))
        return clock((most - step) * (now - since) / (step - first)) if step > first else "?"

    def _say(self, work: Work) -> None:
        count = f"[{sum(w.state in OVER for w in self._work)}/{len(self._work)}]"
        why = f": {work.why}" if work.why else ""
        self.console.print(
            f"{count} {work.job.label}: {work.state.value}{why}",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )


def clock(seconds: float) -> str:
    """`1:02:03`, `2:03`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
