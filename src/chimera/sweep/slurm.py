"""Start jobs as Slurm jobs with the submitit library (extra `slurm`). Does not import torch.

Jobs that can start at the same time are one job array, so a sweep is one call of sbatch. The
package, its Python and the runs must be on a file system that the nodes share. A job that reaches
its time limit or is preempted saves its state, is queued again and continues.
"""

from __future__ import annotations

import contextlib
import functools
import io
import re
import secrets
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from chimera.errors import UserError, one_line
from chimera.sweep.allocation import Command, library
from chimera.sweep.local import Handle, Start
from chimera.sweep.slurm_job import QUEUE, QUEUED, LocalAllocation, SlurmJob, output
from chimera.types import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

#: What submitit raises for parameters that it does not know.
WRONG = (NameError, ValueError)


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
        gpus: GPUs of a job on each node; None: one for each process, and 0 with
            trainer.accelerator=cpu or where the partition has none.
        mem_gb: memory of a job in GB; None: the cluster's default.
        setup: shell lines to run before the job, such as `module load cuda`.
        parameters: further parameters of submitit, such as slurm_constraint.
        at_once: number of jobs that run at a time; replaces `workers`.
        queued: number of jobs that run or wait in the queue at a time, in one array if they can
            start together; lower it where Slurm limits the jobs of a user.
        requeues: largest number of allocations of a job after the first.
        grace: seconds before the end of an allocation at which a job is asked to save.
        nodes: nodes of a job.
        tasks_per_node: processes of a job on each node; several train one run together, whatever
            trainer.devices and trainer.num_nodes are left at.
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
    queued: PositiveInt = 1000
    requeues: NonNegativeInt = 10
    grace: NonNegativeFloat = 180.0
    nodes: PositiveInt = 1
    tasks_per_node: PositiveInt = 1

    #: Arrays in the queue: how many of their jobs run at a time, and the jobs.
    _arrays: list[tuple[int, list[SlurmJob]]] = field(default_factory=list, init=False, repr=False)

    @property
    def tasks(self) -> int:
        """Processes that Slurm starts for a job."""
        return self.nodes * self.tasks_per_node

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

    def room(self, workers: int, unfinished: int) -> int:
        if self._free() <= 0:
            return 0
        return min(self.queued, _largest_array()) - unfinished

    def _free(self) -> int:
        """Number of jobs that may run beside those of earlier arrays."""
        unfinished = ((limit, sum(not job.over for job in jobs)) for limit, jobs in self._arrays)
        return self.at_once - sum(map(min, unfinished))

    def start(self, starts: Sequence[Start]) -> Sequence[Handle | UserError]:
        handles: dict[Start, Handle | UserError] = {}
        arrays: dict[tuple[Path, int], list[Start]] = {}  # those of a call of sbatch are alike
        earlier: dict[str, list[SlurmJob]] = {}
        for start in starts:
            if job := self._queued(start):
                handles[start] = job
                earlier.setdefault(job.job.job_id.partition("_")[0], []).append(job)
            else:
                arrays.setdefault((_private(start), self._processes(start)), []).append(start)
        self._arrays.extend((self.at_once, jobs) for jobs in earlier.values())
        for (folder, processes), group in arrays.items():
            try:
                jobs = self._submit(folder / secrets.token_hex(4), processes, group)
            except UserError as error:
                handles |= dict.fromkeys(group, error)
            else:
                handles |= zip(group, jobs, strict=True)
        return [handles[start] for start in starts]

    def _queued(self, start: Start) -> SlurmJob | None:
        """The job of this run that a killed sweep has left in the queue."""
        try:
            name, job_id = (_private(start) / f"{start.log.parent.name}.job").read_text().split()
        except (FileNotFoundError, ValueError):
            return None
        if self.cluster != "slurm" or QUEUE.state(job_id) not in QUEUED:
            return None
        job_class = library().AutoExecutor(_private(start) / name, self.cluster).job_class
        job = job_class(_private(start) / name, job_id, list(range(self.tasks)))
        return SlurmJob(job, start.log, self.tasks)

    def _submit(self, folder: Path, processes: int, starts: Sequence[Start]) -> list[SlurmJob]:
        """Submit jobs with one call of sbatch.

        Args:
            folder: for submitit's files, new.
            processes: those that a job has on each node and that may use a GPU.
            starts: jobs below the same folder.

        Raises:
            UserError: Slurm refuses the jobs.
        """
        folder.mkdir(mode=0o700)
        utils = library().core.utils
        executor = library().AutoExecutor(folder, self.cluster, slurm_max_num_timeout=self.requeues)
        limit = max(1, min(self._free(), len(starts)))
        words = io.StringIO()  # submitit prints what sbatch says, too
        try:
            executor.update_parameters(**self._allocation(processes, limit) | self.parameters)
            with contextlib.redirect_stderr(words), executor.batch():
                submitted = [executor.submit(self._command(start)) for start in starts]
        except (utils.FailedJobError, utils.FailedSubmissionError, *WRONG) as error:
            shutil.rmtree(folder)
            raise UserError(f"Slurm refused the job: {_refusal(error)}") from error
        kind, jobs = SlurmJob if self.cluster == "slurm" else LocalAllocation, []
        for start, job in zip(starts, submitted, strict=True):
            note = folder.parent / f"{start.log.parent.name}.job"
            note.write_text(f"{folder.name} {job.job_id}")
            jobs.append(kind(job, start.log, self.tasks))
        self._arrays.append((limit, jobs))
        return jobs

    def _command(self, start: Start) -> Command:
        threads = self.cpus if self.tasks > 1 else max(1, self.cpus // start.devices)
        return Command(start.overrides, start.log, threads, self.grace * 0.8, self.tasks)

    def _processes(self, start: Start) -> int:
        return max(start.devices, self.tasks_per_node) if start.gpu else 0

    def interrupt(self, handles: Sequence[Handle]) -> None:
        if self.cluster == "slurm" and handles:  # one call for all
            output("scancel", *(handle.where.split()[1] for handle in handles))
            return
        for handle in handles:
            handle.interrupt()

    def _allocation(self, gpus: int, at_once: int = 1) -> dict[str, Any]:
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
            "slurm_array_parallelism": at_once,
        }
        return {name: value for name, value in parameters.items() if value is not None}

    def _gpus(self, gpus: int) -> int | None:
        """GPUs to ask for: none where the partition has none, unless the user names a number."""
        if self.gpus is None and gpus and self.cluster == "slurm":
            partition = ["-p", self.partition] if self.partition else []
            resources = output("sinfo", "-h", "-o", "%G", *partition)
            gpus = 0 if resources is not None and "gpu" not in resources else gpus
        return (gpus if self.gpus is None else self.gpus) or None


def _private(start: Start) -> Path:
    """Folder of submitit's files beside a run, for its owner alone: pickles are code."""
    folder = start.log.parent.parent / ".slurm"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)
    return folder


def _refusal(error: Exception) -> str:
    """What sbatch says, without its name before each line."""
    lines = (
        line.removeprefix("sbatch: ").removeprefix("error: ") for line in str(error).splitlines()
    )
    return one_line("; ".join(lines))


@functools.cache
def _largest_array() -> int:
    """Number of jobs that an array of this cluster may have."""
    found = re.search(r"MaxArraySize\s*=\s*(\d+)", output("scontrol", "show", "config") or "")
    return int(found[1]) if found else 1000
