"""A job of a sweep: the run that it is, and its state in this sweep."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

from chimera.config.start_model import identities
from chimera.config.tables import metric_of
from chimera.rundir.directory import RunDir
from chimera.rundir.records import Record
from chimera.safe_io import make_folder
from chimera.sweep.local import Handle, Start

#: Metric of a job outside tables.
METRIC = "val/perplexity"


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


@dataclass(eq=False)
class Job:
    """One run of a sweep.

    Args:
        overrides: arguments of `python train.py`.
        label: the overrides in which jobs of the sweep differ.
        config: the resolved configuration.
        directory: directory of the run; it need not exist.
        identity: hash of the configuration.
        record: of the run, if it is finished and not in its directory.

    Attributes:
        state: in this sweep.
        why: reason of the state; the result if DONE.
        slot: number among the jobs that run at the same time; None without a process.
        handle: process of the job; None without one.
        started: when this sweep started the job (`time.monotonic`); None if it did not.
        seconds: what the job took, if this sweep ran it to its end.
    """

    overrides: tuple[str, ...]
    label: str
    config: dict[str, Any]
    directory: RunDir
    identity: str
    record: Record | None = None
    state: State = field(default=State.WAITING, init=False)
    why: str = field(default="", init=False)
    slot: int | None = field(default=None, init=False)
    handle: Handle | None = field(default=None, init=False)
    started: float | None = field(default=None, init=False)
    seconds: float | None = field(default=None, init=False)
    _log_before: int = field(default=0, init=False)
    _log_from: int = field(default=0, init=False)
    _elsewhere_from: object = field(default=None, init=False)

    @property
    def key(self) -> Path:
        """Path of the run directory, equal for jobs that are the same run."""
        return self.directory.path.resolve()

    @property
    def log(self) -> Path:
        """File of the output of the job's process."""
        return self.directory.path.absolute() / "log.txt"

    @property
    def prerequisites(self) -> tuple[str, ...]:
        """Identities of the runs that must be done first: the teacher, the model to start from."""
        return identities(self.config)

    @property
    def metric(self) -> str:
        """Key of the job's result in `metrics` of run.json."""
        name = (self.config.get("table") or {}).get("name")
        return (metric_of(name) if name else "") or METRIC

    def status(self) -> dict[str, Any]:
        """State of the run, as in status.json; `{}` before it has begun."""
        return {"state": "DONE"} if self.record else self.directory.status()

    def value(self, metric: str) -> float | None:
        """A metric of the finished run."""
        result = self.record.result if self.record else self.directory.record()
        return result.get("metrics", {}).get(metric)

    @property
    def changed_elsewhere(self) -> bool:
        """Whether another process wrote a status since it was seen; clocks of hosts may differ."""
        return bool(self.status().get("time") != self._elsewhere_from)

    def prepare(self, slot: int, workers: int) -> Start:
        """Write the head of the job's log; returns what to start in slot `slot` of `workers`."""
        self.slot = slot
        make_folder(self.directory.path, of=self.directory.path)
        with self.log.open("a", encoding="utf-8") as file:
            self._log_before = file.tell()
            overrides = " ".join(self.overrides)
            file.write(f"--- {datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC: train.py {overrides}\n")
        self._log_from = self.log.stat().st_size
        trainer = self.config["trainer"]
        gpu = trainer["accelerator"] != "cpu"
        return Start(self.overrides, self.log, slot, workers, trainer["devices"], gpu)

    def unprepare(self) -> None:
        """Undo `prepare`, because the job cannot be started."""
        if self._log_before:
            os.truncate(self.log, self._log_before)
            return
        self.log.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # it holds a run
            self.log.parent.rmdir()

    def begin(self, handle: Handle) -> None:
        """Change the state to RUNNING in this process."""
        self.handle = handle
        self.started = time.monotonic()
        self.become(State.RUNNING)

    def finish(self) -> None:
        """Change the state to DONE, with the job's result as the reason."""
        if self.started is not None:
            self.seconds = time.monotonic() - self.started
        value = self.value(self.metric)
        self.become(State.DONE, "" if value is None else f"{self.metric} {value:.5g}")

    def become(self, state: State, why: str = "") -> None:
        """Change the state; one without a process of this sweep frees the slot."""
        if state is State.ELSEWHERE:
            self._elsewhere_from = self.status().get("time")
        self.state = state
        self.why = why
        if state is not State.RUNNING:
            self.handle = None
            self.slot = None

    def reason(self, code: int) -> str:
        """Reason why the job ended unfinished: signal, status.json or last line of the log."""
        if code < 0:
            name = signal.Signals(-code).name
            return f"killed by {name}" + (" (out of memory?)" if name == "SIGKILL" else "")
        status = self.status()
        if status.get("state") == "FAILED" and status.get("why"):
            return " ".join(str(status["why"]).split())
        with self.log.open("rb") as file:
            file.seek(self._log_from)
            lines = file.read().decode(errors="replace").split("\n")
        last = [line.strip() for line in lines if line.strip()][-1:]
        return "; ".join([*last, f"exit code {code}"])
