"""Runs what is missing of a sweep; nothing that a job does to itself reaches the others."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from types import FrameType
from typing import Any

from filelock import FileLock, Timeout

from chimera.sweep.local import Handle, Launcher
from chimera.sweep.plan import Job

#: Seconds between looks at the jobs.
TICK = 0.2


class State(StrEnum):
    """Where a job of the sweep stands."""

    WAITING = "waiting"
    ELSEWHERE = "elsewhere"  # another process is at work on this run
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    STOPPED = "stopped"


OVER = {State.DONE, State.FAILED, State.STOPPED}


class Work:
    """A job and what has become of it."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.state = State.WAITING
        self.why = ""
        self.slot: int | None = None
        self.handle: Handle | None = None
        self.started = False  # by this sweep
        path = job.directory.path.absolute()
        self.log = path / "log.txt"
        self.lock = FileLock(path.parent / ".locks" / f"{path.name}.lock", blocking=False)
        self._log_from = 0

    @property
    def status(self) -> dict[str, Any]:
        return self.job.directory.status()

    def done(self) -> None:
        """Over, with the number that it was run for."""
        value = self.job.directory.record().get("metrics", {}).get(self.job.metric)
        self.become(State.DONE, "" if value is None else f"{self.job.metric} {value:.5g}")

    def begin(self, launcher: Launcher, slot: int, workers: int) -> None:
        self.job.directory.path.mkdir(parents=True, exist_ok=True)
        with self.log.open("a", encoding="utf-8") as file:
            words = " ".join(self.job.words)
            file.write(f"--- {datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC: train.py {words}\n")
        self._log_from = self.log.stat().st_size
        trainer = self.job.config["trainer"]
        gpus = 0 if trainer["accelerator"] == "cpu" else trainer["devices"]
        self.handle = launcher.start(self.job.words, self.log, slot, workers, gpus)
        self.slot, self.started = slot, True

    def become(self, state: State, why: str = "") -> None:
        self.state, self.why = state, why
        if state in OVER or state is State.ELSEWHERE:
            self.handle = self.slot = None
            self.lock.release()

    def reason(self, code: int) -> str:
        """Why the job ended without being done, from the nearest witness."""
        if code < 0:
            name = signal.Signals(-code).name
            return f"killed by {name}" + (" (out of memory?)" if name == "SIGKILL" else "")
        status = self.status
        if status.get("state") == "FAILED" and status.get("why"):
            return " ".join(str(status["why"]).split())
        with self.log.open("rb") as file:
            file.seek(self._log_from)
            said = file.read().decode(errors="replace").split("\n")
        last = [line.strip() for line in said if line.strip()][-1:]
        return "; ".join([*last, f"exit code {code}"])


class Engine:
    """The loop over the jobs of one batch.

    Args:
        jobs: of the batch; each run once, however often it is among them.
        launcher: starts them.
        workers: at a time.
        board: shows them.
    """

    def __init__(self, jobs: list[Job], launcher: Launcher, workers: int, board: Any) -> None:
        self.work: dict[Path, Work] = {}
        for job in jobs:
            self.work.setdefault(job.key, Work(job))
        self.launcher, self.workers, self.board = launcher, launcher.slots(workers), board
        self.began = datetime.now(UTC)
        self.stops = 0  # how often it was asked to stop
        self._stop_by = float("inf")

    def run(self) -> list[Work]:
        """Until every job is over, or Ctrl-C and all that ran is saved."""
        everything = list(self.work.values())
        try:
            with self._signals(), self.board.showing(everything):
                while not all(work.state in OVER for work in everything):
                    before = [work.state for work in everything]
                    for work in everything:
                        if work.state not in OVER:
                            self._look(work)
                    self.board.update()
                    if before == [work.state for work in everything]:
                        time.sleep(TICK)
        finally:
            for work in everything:
                if work.handle:  # only if the loop itself broke
                    work.handle.kill()
                work.lock.release()
        return everything

    def _look(self, work: Work) -> None:
        if work.handle:
            self._look_after(work, work.handle)
        elif self.stops:
            work.become(State.STOPPED, "not started")
        elif self._done(work):
            work.done()
        elif why := self._cannot(work):
            work.become(State.FAILED, why)
        elif not self._must_wait(work):
            self._start(work)

    def _look_after(self, work: Work, handle: Handle) -> None:
        code = handle.poll()
        if code is None:
            if time.monotonic() > self._stop_by:
                handle.kill()
            return
        if work.status.get("state") == "DONE":
            work.done()
        elif self.stops:
            saved = work.status.get("state") == "STOPPED"
            work.become(State.STOPPED, "saved" if saved else "its last checkpoint is kept")
        elif code == 2 and work.job.directory.alive():  # someone else was faster
            work.become(State.ELSEWHERE)
        else:
            work.become(State.FAILED, work.reason(code))

    def _done(self, work: Work) -> bool:
        again = work.job.config["overwrite"] and not work.started
        return work.status.get("state") == "DONE" and not again

    def _cannot(self, work: Work) -> str:
        """Why the job will never run: it just failed under other hands, or what it needs did."""
        for needed in self._needed(work):
            if needed.state is State.FAILED:
                return f"needs {needed.job.label}, which failed"
        status = work.status
        if work.state is not State.ELSEWHERE or status.get("state") != "FAILED":
            return ""
        since = datetime.fromisoformat(status["time"])
        return f"elsewhere: {status.get('why', 'failed')}" if since > self.began else ""

    def _must_wait(self, work: Work) -> bool:
        return any(needed.state is not State.DONE for needed in self._needed(work))

    def _needed(self, work: Work) -> list[Work]:
        """The jobs of this sweep that have to be done before."""
        needs = work.job.needs
        return [one for one in self.work.values() if one.job.identity in needs]

    def _start(self, work: Work) -> None:
        if work.job.directory.alive():
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
        # Between our look and our lock it may have been run to its end.
        if self._done(work):
            work.done()
        else:
            work.begin(self.launcher, slot, self.workers)
            work.become(State.RUNNING)

    def _free_slot(self) -> int | None:
        taken = {work.slot for work in self.work.values()}
        return next((slot for slot in range(self.workers) if slot not in taken), None)

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Ctrl-C and SIGTERM ask the jobs once to save; a second one ends them."""
        kinds = (signal.SIGINT, signal.SIGTERM)
        before = [signal.signal(kind, self._stop) for kind in kinds]
        try:
            yield
        finally:
            for kind, handler in zip(kinds, before, strict=True):
                signal.signal(kind, handler)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self.stops += 1
        grace = self.launcher.grace if self.stops == 1 else 0.0
        self._stop_by = time.monotonic() + grace
        for work in self.work.values():
            if work.handle and self.stops == 1:
                work.handle.interrupt()
