"""Start jobs as Slurm jobs with the submitit library (extra `slurm`). Does not import torch.

The checkout and the runs must be on a file system that the nodes share. A job that reaches its time
limit or is preempted saves its state, is queued again and continues.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from chimera.errors import UserError, one_line
from chimera.sweep.allocation import Command, library
from chimera.sweep.local import Handle
from chimera.types import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

#: States of an unfinished Slurm job.
QUEUED = {"PENDING", "RUNNING", "SUSPENDED", "CONFIGURING", "COMPLETING", "STOPPED", "SIGNALING"}
QUEUED |= {"REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "RESIZING", "STAGE_OUT", "SPECIAL_EXIT"}
#: Seconds between two questions to Slurm, and those that a result may take to be seen here.
EVERY, LAG = 2.0, 15.0


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
        nodes: nodes of a job.
        tasks_per_node: processes of a job on each node; several are the ranks of one run, which
            needs trainer.devices and trainer.num_nodes.
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
    nodes: PositiveInt = 1
    tasks_per_node: PositiveInt = 1

    def check(self) -> None:
        """Check that this machine can submit jobs.

        Raises:
            UserError: the submitit library or Slurm's commands are missing.
        """
        library()
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
        for private in (folder.parent, folder):  # pickles are code: no other user may write them
            private.mkdir(mode=0o700, parents=True, exist_ok=True)
            private.chmod(0o700)
        executor = library().AutoExecutor(folder, self.cluster, slurm_max_num_timeout=self.requeues)
        tasks = self.nodes * self.tasks_per_node
        job_id = folder / "job_id"
        if job_id.exists():  # a killed sweep may have left its job in the queue
            previous = executor.job_class(folder, job_id.read_text(), list(range(tasks)))
            if self.cluster == "slurm" and QUEUE.state(previous.job_id) in QUEUED:
                return SlurmJob(previous, log, tasks)
        run = Command(tuple(overrides), log, self.cpus, self.grace * 0.8, tasks)
        try:
            executor.update_parameters(**self._allocation(gpus), **self.parameters)
            job = executor.submit(run)
        except (library().core.utils.FailedJobError, NameError, ValueError) as error:
            raise UserError(f"Slurm refused the job: {one_line(error)}") from error
        job_id.write_text(job.job_id)
        return SlurmJob(job, log, tasks) if self.cluster == "slurm" else LocalAllocation(job, log)

    def _allocation(self, gpus: int) -> dict[str, Any]:
        """Parameters for submitit without those that are None, which the cluster decides."""
        parameters = {
            "name": "chimera",
            "timeout_min": self.timeout_min,
            "cpus_per_task": self.cpus,
            "gpus_per_node": self._gpus(gpus),
            "nodes": self.nodes if self.nodes > 1 else None,
            "tasks_per_node": self.tasks_per_node if self.tasks_per_node > 1 else None,
            "mem_gb": self.mem_gb,
            "slurm_setup": self.setup or None,
            "slurm_partition": self.partition,
            "slurm_account": self.account,
            "slurm_qos": self.qos,
            "slurm_signal_delay_s": round(self.grace),
        }
        return {name: value for name, value in parameters.items() if value is not None}

    def _gpus(self, gpus: int) -> int | None:
        """GPUs to ask for: none where the cluster has none, unless the user names a number."""
        if self.gpus is None and self.cluster == "slurm":
            resources = _output("sinfo", "-h", "-o", "%G")
            gpus = 0 if resources is not None and "gpu" not in resources else gpus
        return (gpus if self.gpus is None else self.gpus) or None


class Queue:
    """States of the user's jobs by squeue, which works without an accounting database."""

    def __init__(self) -> None:
        self._states: dict[str, str] | None = None
        self._read = -EVERY

    def state(self, job_id: str) -> str | None:
        """State of a job, empty if Slurm has forgotten it; None if Slurm does not answer."""
        if time.monotonic() - self._read >= EVERY:
            self._read = time.monotonic()
            listed = _output("squeue", "--me", "-h", "-t", "all", "-o", "%i %T")
            self._states = None if listed is None else dict(map(str.split, listed.splitlines()))
        return None if self._states is None else self._states.get(job_id, "")


#: One question is for all jobs.
QUEUE = Queue()


class SlurmJob:
    """A submitted job of so many tasks."""

    def __init__(self, job: Any, log: Path, tasks: int = 1) -> None:
        self.job, self.log = job, log
        self.where = f"job {job.job_id}"
        folder = job.paths.folder
        self._results = [folder / f"{job.job_id}_{n}_result.pkl" for n in range(tasks)]
        self._ended: float | None = None  # when it was first seen to have ended without a result

    def poll(self) -> int | None:
        if all(path.exists() for path in self._results):
            error = self.job.exception()
            if error is None:
                return next((int(code) for code in self.job.results() if code), 0)
            return self._failed(str(error).splitlines()[0])
        state = QUEUE.state(self.job.job_id)
        if state is None or state in QUEUED:
            self._ended = None
            return None
        self._ended = self._ended or time.monotonic()
        if time.monotonic() - self._ended < LAG:
            return None
        ended = state or "and is no longer known to Slurm"
        return self._failed(f"ended {ended}; start the same command again to continue")

    def _failed(self, why: str) -> int:
        with self.log.open("a", encoding="utf-8") as file:
            file.write(f"{self.where}: {why}\n")
        return 1

    def interrupt(self) -> None:
        self.job.cancel(check=False)  # Slurm sends SIGTERM; the run then saves

    def kill(self) -> None:
        self.job.cancel(check=False)


class LocalAllocation(SlurmJob):
    """A job that submitit runs as a process of this machine."""

    def poll(self) -> int | None:
        if not self.job.done():
            return None
        error = self.job.exception()
        return int(self.job.result()) if error is None else self._failed(str(error).splitlines()[0])


def _output(*command: str) -> str | None:
    """Output of one of Slurm's commands; None if it fails or is not there."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
