"""What runs inside a Slurm allocation: one training process, and what happens to it at signals.

At the time limit Slurm sends SIGUSR2 to all processes of the job. The run ignores it; submitit's
handler then calls `Command.checkpoint`, which lets the run save, and queues the job again. Requeue,
preemption and scancel send SIGTERM to all: the run saves by itself and exits with 130. The job must
not end then, or Slurm would not queue it again: it waits to be killed. Does not import torch.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

from chimera.errors import UserError
from chimera.rundir.directory import HEARTBEAT_TIMEOUT, RunDir
from chimera.sweep.local import command

#: Exit code of a run that was asked to stop and is saved.
SAVED = 130


class Command:
    """The function that submitit calls in the allocation: runs the command in a child process.

    Args:
        overrides: overrides of the run.
        log: file for its output, in the run's directory.
        cpus: threads of the process.
        grace: seconds that the run has to save at the end of the allocation.
        tasks: processes of the job; with several, each is a rank of the run.
    """

    def __init__(
        self, overrides: tuple[str, ...], log: Path, cpus: int, grace: float, tasks: int = 1
    ) -> None:
        self.overrides, self.log, self.cpus, self.grace = overrides, log, cpus, grace
        self.tasks = tasks

    def __call__(self) -> int:
        self._terminated = False
        with contextlib.suppress(ValueError):  # not in the main thread
            signal.signal(signal.SIGTERM, self._note)
            if int(os.environ.get("SLURM_PROCID", 0)):
                # Submitit's handler in the first task asks all to save, and queues the job again.
                signal.signal(signal.SIGUSR2, self._note)
        if int(os.environ.get("SLURM_RESTART_COUNT", 0)):
            self._wait_for_heartbeat()
        variables = {"OMP_NUM_THREADS": str(self.cpus)}
        if self.tasks == 1:
            # With this name Lightning neither uses Slurm's tasks as its ranks nor requeues the job.
            variables["SLURM_JOB_NAME"] = "interactive"
        with self.log.open("ab") as file:
            self.process = subprocess.Popen(
                command(self.overrides), stdout=file, stderr=file, env=os.environ | variables,
                preexec_fn=_ignore_the_limit,
            )  # fmt: skip
        # Not `wait`: the signal handler `checkpoint` polls the same process.
        while self.process.poll() is None:
            time.sleep(0.2)
        if self.process.returncode == SAVED and self._terminated:
            self._wait_to_be_killed()
        return self.process.returncode

    def checkpoint(self) -> Any:
        """At the end of the allocation: ask the run to save, and queue the same command again."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + self.grace
        while self.process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.2)
        same_command = Command(self.overrides, self.log, self.cpus, self.grace, self.tasks)
        return library().helpers.DelayedSubmission(same_command)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._terminated = True

    def _wait_to_be_killed(self) -> None:
        """Wait for Slurm's kill; a result would tell the sweep that the run is over."""
        time.sleep(self.grace)
        while _is_preempted():  # with a longer grace of its own
            time.sleep(self.grace)
        os._exit(SAVED)

    def _wait_for_heartbeat(self) -> None:
        """After the loss of a node the run's last heartbeat still counts for a minute."""
        deadline = time.monotonic() + 2 * HEARTBEAT_TIMEOUT
        while RunDir(self.log.parent).is_running() and time.monotonic() < deadline:
            time.sleep(1)


def _ignore_the_limit() -> None:
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)


def _is_preempted() -> bool:
    """Whether Slurm has given this job's place to another one and is about to end it."""
    try:
        told = subprocess.run(
            ["scontrol", "show", "job", os.environ.get("SLURM_JOB_ID", "")],
            capture_output=True, text=True, timeout=60,
        ).stdout  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return False
    return "PreemptTime=" in told and "PreemptTime=None" not in told


def library() -> ModuleType:
    """Submitit.

    Raises:
        UserError: it is not installed.
    """
    try:
        import submitit
    except ModuleNotFoundError as error:
        raise UserError(
            "launcher=submitit needs the submitit library; install it: pip install"
            " 'chimera-lm[slurm]', or choose launcher=local"
        ) from error
    assert isinstance(submitit, ModuleType)
    return submitit
