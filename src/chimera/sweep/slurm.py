"""Start jobs as Slurm jobs with the submitit library (extra `slurm`). Does not import torch.

Jobs that can start at the same time are one job array, so a sweep is one call of sbatch. The
package, its Python and the runs must be on a file system that the nodes share. A job that reaches
its time limit or is preempted saves its state, is queued again and continues:

At the time limit Slurm sends SIGUSR2 to all processes of the job. The run ignores it; submitit's
handler then calls `Command.checkpoint`, which lets the run save, and queues the job again. Requeue,
preemption and scancel send SIGTERM to all: the run saves by itself and exits with 130. The job must
not end then, or Slurm would not queue it again: it waits to be killed.
"""

from __future__ import annotations

import contextlib
import functools
import io
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import Any, Literal

from chimera.errors import UserError, library, one_line
from chimera.rundir.directory import HEARTBEAT_TIMEOUT, RunDir
from chimera.sweep.local import Handle, Start, command
from chimera.types import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

#: Exit code of a run that was asked to stop and is saved.
SAVED = 130
#: States of an unfinished Slurm job.
QUEUED = {"PENDING", "RUNNING", "SUSPENDED", "CONFIGURING", "COMPLETING", "STOPPED", "SIGNALING"}
QUEUED |= {"REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "RESIZING", "STAGE_OUT", "SPECIAL_EXIT"}
#: Reasons for which a job waits that no other job's end removes.
STUCK = {"PartitionConfig", "PartitionNodeLimit", "PartitionTimeLimit", "BadConstraints"}
#: Seconds between two questions to Slurm, and those that a result may take to be seen here.
EVERY = 2.0
LAG = 15.0


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
        submitit()
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
        job_class = submitit().AutoExecutor(_private(start) / name, self.cluster).job_class
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
        utils = submitit().core.utils
        executor = submitit().AutoExecutor(
            folder, self.cluster, slurm_max_num_timeout=self.requeues
        )
        limit = max(1, min(self._free(), len(starts)))
        words = io.StringIO()  # submitit prints what sbatch says, too
        try:
            executor.update_parameters(**self._allocation(processes, limit) | self.parameters)
            with contextlib.redirect_stderr(words), executor.batch():
                submitted = [executor.submit(self._command(start)) for start in starts]
        except (utils.FailedJobError, utils.FailedSubmissionError, *WRONG) as error:
            shutil.rmtree(folder)
            raise UserError(f"Slurm refused the job: {_refusal(error)}") from error
        kind = SlurmJob if self.cluster == "slurm" else LocalAllocation
        jobs = []
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


class Queue:
    """States of the user's jobs by squeue, which works without an accounting database."""

    def __init__(self) -> None:
        self._states: dict[str, str] | None = None
        self._reasons: dict[str, str] = {}
        self._read = -EVERY

    def state(self, job_id: str) -> str | None:
        """State of a job, empty if Slurm has forgotten it; None if Slurm does not answer."""
        if time.monotonic() - self._read >= EVERY:
            self._read = time.monotonic()
            listed = output("squeue", "--me", "-h", "-r", "-t", "all", "-o", "%i %T %r")
            rows = [line.split(None, 2) for line in (listed or "").splitlines()]
            self._states = None if listed is None else {row[0]: row[1] for row in rows}
            self._reasons = {row[0]: row[-1] for row in rows}
        return None if self._states is None else self._states.get(job_id, "")

    def reason(self, job_id: str) -> str:
        """Why a job waits, as Slurm says it."""
        return self._reasons.get(job_id, "")


#: One question is for all jobs.
QUEUE = Queue()


class SlurmJob:
    """A submitted job of so many tasks."""

    def __init__(self, job: Any, log: Path, tasks: int = 1) -> None:
        self.job = job
        self.log = log
        self.where = f"job {job.job_id}"
        folder = job.paths.folder
        self._results = [folder / f"{job.job_id}_{n}_result.pkl" for n in range(tasks)]
        self._ended: float | None = None  # when it was first seen to have ended without a result
        self._look = -EVERY
        self.over = self._told = False

    def poll(self) -> int | None:
        if time.monotonic() - self._look < EVERY:
            return None
        self._look = time.monotonic()
        code = self._code()
        self.over = code is not None
        return code

    def _code(self) -> int | None:
        if all(path.exists() for path in self._results):
            error = self.job.exception()
            if error is None:
                return next((int(code) for code in self.job.results() if code), 0)
            return self._failed(str(error).splitlines()[0])
        state = QUEUE.state(self.job.job_id)
        if state is None or state in QUEUED:
            self._ended = None
            if state == "PENDING" and QUEUE.reason(self.job.job_id) in STUCK and not self._told:
                self._told = True
                why = QUEUE.reason(self.job.job_id)
                print(f"{self.where} may wait for ever, Slurm says {why}", file=sys.stderr)
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

    kill = interrupt


class LocalAllocation(SlurmJob):
    """A job that submitit runs as a process of this machine."""

    def _code(self) -> int | None:
        if not self.job.done():
            return None
        error = self.job.exception()
        return int(self.job.result()) if error is None else self._failed(str(error).splitlines()[0])


@dataclass
class Command:
    """The function that submitit calls in the allocation: runs the command in a child process.

    Args:
        overrides: overrides of the run.
        log: file for its output, in the run's directory.
        cpus: threads of the process.
        grace: seconds that the run has to save at the end of the allocation.
        tasks: processes of the job; with several, each is a rank of the run.
    """

    overrides: tuple[str, ...]
    log: Path
    cpus: int
    grace: float
    tasks: int = 1

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
        return submitit().helpers.DelayedSubmission(replace(self))

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


def submitit() -> Any:
    """The library.

    Raises:
        UserError: it is not installed.
    """
    return library("submitit", "launcher=submitit", "slurm")


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


def output(*command: str) -> str | None:
    """Output of one of Slurm's commands; None if it fails or is not there."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
