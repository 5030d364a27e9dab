"""Start jobs as Slurm jobs with the submitit library (extra `slurm`). Does not import torch.

The directories of the checkout and of the runs have to be on a file system that the nodes share.
A job that reaches its time limit or is preempted saves, is put back into the queue and goes on.
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

#: States of a Slurm job that is not over.
QUEUED = {"PENDING", "RUNNING", "REQUEUED", "SUSPENDED", "CONFIGURING"}


@dataclass(frozen=True)
class Submitit:
    """Allocations of a Slurm cluster.

    Args:
        cluster: slurm; `local` runs the same path as processes of this machine.
        partition: to queue in; None: the cluster's default, as for the two below.
        account: to charge.
        qos: quality of service.
        timeout_min: minutes of an allocation; a run that needs more goes on in the next one.
        cpus: cores of a job.
        gpus: of a job; None: trainer.devices, and none under trainer.accelerator=cpu.
        mem_gb: memory of a job; None: the cluster's default.
        setup: shell lines before the job, such as `module load cuda`.
        parameters: further ones of submitit, such as slurm_constraint.
        at_once: jobs in the queue at a time; stands for `workers`.
        requeues: allocations after the first that one job may take.
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
        """Whether this machine can submit.

        Raises:
            UserError: the library or Slurm's commands are not there.
        """
        _library()
        if self.cluster == "slurm" and shutil.which("sbatch") is None:
            raise UserError(
                "launcher=submitit finds no sbatch here; start it on a machine of the cluster, or"
                " choose launcher=local"
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
        last = folder / "job_id"
        if last.exists():  # queued by a sweep that was killed since
            before = executor.job_class(folder, last.read_text())
            if before.state in QUEUED:
                return SlurmJob(before, log)
        job = executor.submit(Command(tuple(overrides), log, self.cpus, self.grace * 0.8))
        last.write_text(job.job_id)
        return SlurmJob(job, log)

    def _allocation(self, gpus: int) -> dict[str, Any]:
        """Parameters of submitit; what is null is left to the cluster."""
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
    """The function that submitit calls in the allocation: the run's command as a child process.

    Args:
        overrides: of the run.
        log: takes its output.
        cpus: threads of the process.
        grace: seconds that it has for saving at the end of the allocation.
    """

    def __init__(self, overrides: tuple[str, ...], log: Path, cpus: int, grace: float) -> None:
        self.overrides, self.log, self.cpus, self.grace = overrides, log, cpus, grace

    def __call__(self) -> int:
        # Lightning would take the allocation's tasks for its ranks and requeue on its own.
        alone = {"SLURM_JOB_NAME": "interactive", "OMP_NUM_THREADS": str(self.cpus)}
        with self.log.open("ab") as file:
            self.process = subprocess.Popen(
                command(self.overrides), stdout=file, stderr=file, env=os.environ | alone
            )
        while self.process.poll() is None:  # not wait: `checkpoint` asks from a signal handler
            time.sleep(0.2)
        return self.process.returncode

    def checkpoint(self) -> Any:
        """At the end of the allocation: let the run save, and queue the same command again."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGTERM)
        until = time.monotonic() + self.grace
        while self.process.poll() is None and time.monotonic() < until:
            time.sleep(0.2)
        again = Command(self.overrides, self.log, self.cpus, self.grace)
        return _library().helpers.DelayedSubmission(again)


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
        self.job.cancel(check=False)  # Slurm sends SIGTERM, on which the run saves

    def kill(self) -> None:
        self.job.cancel(check=False)


def _library() -> ModuleType:
    try:
        import submitit
    except ModuleNotFoundError as error:
        raise UserError(
            "launcher=submitit needs the submitit library; pip install 'chimera[slurm]'"
        ) from error
    assert isinstance(submitit, ModuleType)
    return submitit
