"""Start jobs as Slurm jobs with the submitit library (extra `slurm`). Does not import torch.

The checkout and the runs must be on a file system that the nodes share. A job that reaches its time
limit or is preempted saves its state, is queued again and continues.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from chimera.errors import UserError
from chimera.sweep.local import Handle, command
from chimera.types import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

#: States of an unfinished Slurm job.
QUEUED = {"PENDING", "RUNNING", "REQUEUED", "SUSPENDED", "CONFIGURING"}


@dataclass(frozen=True)
class Submitit:
    """Starts each job in an allocation of a Slurm cluster.

    Args:
        cluster: slurm; `local` runs the same code as processes of this machine.
        partition: Slurm partition; None: the cluster's default, also for `account` and `qos`.
        account: account to charge.
        qos: quality of service.
        timeout_min: minutes of an allocation; a longer run continues in the next allocation.
        cpus: cores of a job.
        gpus: GPUs of a job; None: trainer.devices, and 0 with trainer.accelerator=cpu.
        mem_gb: memory of a job in GB; None: the cluster's default.
        setup: shell lines to run before the job, such as `module load cuda`.
        parameters: further parameters of submitit, such as slurm_constraint.
        at_once: number of jobs in the queue at a time; replaces `workers`.
        requeues: largest number of allocations of a job after the first.
        grace: seconds before the end of an allocation at which a job is asked to save.
    """

    cluster: Literal["slurm", "local"] = "slurm"
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    timeout_min: PositiveInt = 720
    cpus: PositiveInt = 8
    gpus: NonNegativeInt | None = None
    mem_gb: PositiveFloat | None = None
    setup: list[str] = field(default_factory=list)
    parameters: dict[str, str | int | float | bool] = field(default_factory=dict)
    at_once: PositiveInt = 100
    requeues: NonNegativeInt = 10
    grace: NonNegativeFloat = 180.0

    def check(self) -> None:
        """Check that this machine can submit jobs.

        Raises:
            UserError: the submitit library or Slurm's commands are missing.
        """
        _library()
        if self.cluster == "slurm" and shutil.which("sbatch") is None:
            raise UserError(
                "launcher=submitit finds no sbatch here; run the command on a machine of the"
                " cluster, or choose launcher=local"
            )

    def slots(self, workers: int) -> int:
        return self.at_once

    def start(
        self, overrides: Sequence[str], log: Path, slot: int, workers: int, gpus: int
    ) -> Handle:
        folder = log.parent.parent / ".slurm" / log.parent.name
        executor = _library().AutoExecutor(
            folder, self.cluster, slurm_max_num_timeout=self.requeues
        )
        executor.update_parameters(**self._allocation(gpus), **self.parameters)
        job_id = folder / "job_id"
        if job_id.exists():  # a killed sweep may have left its job in the queue
            previous = executor.job_class(folder, job_id.read_text())
            if previous.state in QUEUED:
                return SlurmJob(previous, log)
        job = executor.submit(Command(tuple(overrides), log, self.cpus, self.grace * 0.8))
        job_id.write_text(job.job_id)
        return SlurmJob(job, log)

    def _allocation(self, gpus: int) -> dict[str, Any]:
        """Parameters for submitit without those that are None, which the cluster decides."""
        parameters = {
            "name": "chimera",
            "timeout_min": self.timeout_min,
            "cpus_per_task": self.cpus,
            "gpus_per_node": gpus if self.gpus is None else self.gpus,
            "mem_gb": self.mem_gb,
            "slurm_setup": self.setup or None,
            "slurm_partition": self.partition,
            "slurm_account": self.account,
            "slurm_qos": self.qos,
            "slurm_signal_delay_s": round(self.grace),
        }
        return {name: value for name, value in parameters.items() if value is not None}


class Command:
    """The function that submitit calls in the allocation: runs the command in a child process.

    Args:
        overrides: overrides of the run.
        log: file for its output.
        cpus: threads of the process.
        grace: seconds that the run has to save at the end of the allocation.
    """

    def __init__(self, overrides: tuple[str, ...], log: Path, cpus: int, grace: float) -> None:
        self.overrides, self.log, self.cpus, self.grace = overrides, log, cpus, grace

    def __call__(self) -> int:
        # With this job name Lightning neither uses Slurm's tasks as its ranks nor requeues the job.
        variables = {"SLURM_JOB_NAME": "interactive", "OMP_NUM_THREADS": str(self.cpus)}
        with self.log.open("ab") as file:
            self.process = subprocess.Popen(
                command(self.overrides), stdout=file, stderr=file, env=os.environ | variables
            )
        # Not `wait`: the signal handler `checkpoint` polls the same process.
        while self.process.poll() is None:
            time.sleep(0.2)
        return self.process.returncode

    def checkpoint(self) -> Any:
        """At the end of the allocation: ask the run to save, and queue the same command again."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + self.grace
        while self.process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.2)
        same_command = Command(self.overrides, self.log, self.cpus, self.grace)
        return _library().helpers.DelayedSubmission(same_command)


class SlurmJob:
    """A submitted job."""

    def __init__(self, job: Any, log: Path) -> None:
        self.job, self.log = job, log
        self.where = f"job {job.job_id}"

    def poll(self) -> int | None:
        if not self.job.done():
            return None
        error = self.job.exception()
        if error is None:
            return int(self.job.result())
        with self.log.open("a", encoding="utf-8") as file:
            file.write(f"{self.where} ended {self.job.state}: {str(error).splitlines()[0]}\n")
        return 1

    def interrupt(self) -> None:
        self.job.cancel(check=False)  # Slurm sends SIGTERM; the run then saves

    def kill(self) -> None:
        self.job.cancel(check=False)


def _library() -> ModuleType:
    try:
        import submitit
    except ModuleNotFoundError as error:
        raise UserError(
            "launcher=submitit needs the submitit library; install it: pip install"
            " 'chimera[slurm]', or choose launcher=local"
        ) from error
    assert isinstance(submitit, ModuleType)
    return submitit
