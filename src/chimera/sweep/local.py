"""Start jobs as processes of this machine. Does not import torch, except to count GPUs."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from chimera.errors import UserError
from chimera.program import job as command
from chimera.types import NonNegativeFloat, PositiveInt


class Handle(Protocol):
    """Interface of a started job; `where` names its process or its Slurm job."""

    where: str

    def poll(self) -> int | None:
        """Exit code, negative for the signal that ended the job; None while the job runs."""

    def interrupt(self) -> None:
        """Ask the job to save and stop."""

    def kill(self) -> None:
        """End the job at once."""


@dataclass(frozen=True)
class Start:
    """A job to start: a run of `overrides`, its output appended to `log`.

    Args:
        overrides: overrides of the job.
        log: file for the job's output.
        slot: number of the job among those that run at the same time, from 0.
        workers: largest number of jobs that run at the same time.
        devices: processes that the job starts itself, `trainer.devices`.
        gpu: whether each process may use a GPU.
    """

    overrides: tuple[str, ...]
    log: Path
    slot: int = 0
    workers: int = 1
    devices: int = 1
    gpu: bool = False


class Launcher(Protocol):
    """Interface of a launcher, which starts jobs; the group `launcher` chooses one."""

    grace: float

    def check(self) -> None:
        """Raise a UserError if the launcher cannot work on this machine."""

    def slots(self, workers: int) -> int:
        """Number of jobs that run at the same time."""

    def room(self, workers: int, unfinished: int) -> int:
        """Number of further jobs that can be started now, beside so many unfinished ones."""

    def start(self, starts: Sequence[Start]) -> Sequence[Handle | UserError]:
        """Start jobs; a job that cannot be started has the reason in the place of its handle."""

    def interrupt(self, handles: Sequence[Handle]) -> None:
        """Ask jobs to save and stop."""


@dataclass(frozen=True)
class Local:
    """Starts jobs as processes of this machine.

    Args:
        threads: CPU threads of a job; None: the cores, shared evenly between the workers.
        grace: seconds that jobs have to save after Ctrl-C.
    """

    threads: PositiveInt | None = None
    grace: NonNegativeFloat = 120.0

    def check(self) -> None:
        """Never raises: processes can always be started."""

    def slots(self, workers: int) -> int:
        return workers

    def room(self, workers: int, unfinished: int) -> int:
        return workers - unfinished

    def start(self, starts: Sequence[Start]) -> Sequence[Handle | UserError]:
        return [self._start(start) for start in starts]

    def _start(self, start: Start) -> Handle:
        gpus = start.devices if start.gpu else 0
        environment = environment_of(start.slot, start.workers, self.threads, gpus)
        with start.log.open("ab") as file:
            # In a session of its own, so that Ctrl-C in the terminal reaches only the sweep,
            # which interrupts each job once.
            process = subprocess.Popen(
                command(start.overrides),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )
        with contextlib.suppress(OSError):  # out of memory, the kernel kills a job, not the sweep
            Path(f"/proc/{process.pid}/oom_score_adj").write_text("500")
        return LocalJob(process)

    def interrupt(self, handles: Sequence[Handle]) -> None:
        for handle in handles:
            handle.interrupt()


class LocalJob:
    """A job in a child process."""

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


def environment_of(slot: int, workers: int, threads: int | None, gpus: int) -> dict[str, str]:
    """Environment variables of a job that shares the machine with `workers` − 1 others.

    Sets OMP_WAIT_POLICY=PASSIVE: OpenMP threads that spin at a barrier, on a core that another job
    needs, slow both jobs down up to sixtyfold.
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
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [name for name in visible.split(",") if name]
    import torch

    return [str(number) for number in range(torch.cuda.device_count())]
