"""Start jobs as processes of this machine. Does not import torch, except to count GPUs."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from chimera.paths import ROOT
from chimera.types import NonNegativeFloat, PositiveInt


class Handle(Protocol):
    """A started job."""

    where: str

    def poll(self) -> int | None:
        """Its exit code (below 0: the signal that ended it), None while it runs."""

    def interrupt(self) -> None:
        """Ask it once to save and stop."""

    def kill(self) -> None:
        """End it at once."""


class Launcher(Protocol):
    """Starts jobs; the group `launcher` chooses one."""

    grace: float

    def check(self) -> None:
        """Raise a UserError where it cannot work."""

    def slots(self, workers: int) -> int:
        """Jobs at a time."""

    def start(
        self, overrides: Sequence[str], log: Path, slot: int, workers: int, gpus: int
    ) -> Handle:
        """Start `python train.py <overrides>`, its output appended to `log`.

        Args:
            overrides: of the job.
            log: takes its output.
            slot: its number among the jobs that run at the same time, from 0.
            workers: the most jobs that do.
            gpus: that the job asks for; 0 if it keeps to the CPU.
        """


@dataclass(frozen=True)
class Local:
    """Processes of this machine.

    Args:
        threads: CPU threads of a job; None: the cores, shared evenly between the workers.
        grace: seconds that jobs have for saving after Ctrl-C.
    """

    threads: PositiveInt | None = None
    grace: NonNegativeFloat = 120.0

    def check(self) -> None:
        """Processes can always be started."""

    def slots(self, workers: int) -> int:
        return workers

    def start(
        self, overrides: Sequence[str], log: Path, slot: int, workers: int, gpus: int
    ) -> Handle:
        environment = environment_of(slot, workers, self.threads, gpus)
        with log.open("ab") as file:
            # A session of its own: Ctrl-C in the terminal reaches the sweep, which passes it on.
            process = subprocess.Popen(
                command(overrides),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )
        with contextlib.suppress(OSError):  # when memory runs out, a job goes before the sweep
            Path(f"/proc/{process.pid}/oom_score_adj").write_text("500")
        return LocalJob(process)


class LocalJob:
    """A child process."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self.where = f"process {process.pid}"

    def poll(self) -> int | None:
        return self.process.poll()

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def command(overrides: Sequence[str]) -> list[str]:
    """One run's command: Lightning's strategies may start it again, and must not start a sweep."""
    return [sys.executable, str(ROOT / "train.py"), *overrides]


def environment_of(slot: int, workers: int, threads: int | None, gpus: int) -> dict[str, str]:
    """The environment of a job that shares the machine with `workers` − 1 others.

    Threads that wait must sleep: a spinning barrier on a core that another job wants costs both
    up to sixtyfold.
    """
    environment = dict(os.environ)
    share = str(threads or max(1, len(os.sched_getaffinity(0)) // workers))
    if threads or "OMP_NUM_THREADS" not in environment:
        environment["OMP_NUM_THREADS"] = share
    environment.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    environment.setdefault("COLUMNS", "120")
    visible = visible_gpus()
    if gpus == 1 and len(visible) > 1:
        environment["CUDA_VISIBLE_DEVICES"] = visible[slot % len(visible)]
    return environment


def visible_gpus() -> list[str]:
    """Names of the GPUs that this process may use, in the order of the machine."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return [name for name in named.split(",") if name]
    import torch

    return [str(number) for number in range(torch.cuda.device_count())]
