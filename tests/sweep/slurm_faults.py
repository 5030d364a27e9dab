"""Faults of a real Slurm cluster: `python -m tests.sweep.slurm_faults [--tasks n] [fault …]`.

Needs Slurm's commands and a cluster that answers; `tools/slurm_local.sh start` makes one of this
machine. A sweep of one job is started with launcher=submitit, and a fault is planted in the middle
of its training. The run has to go on and to end DONE with the losses of an undisturbed run: to the
bit with one task, and to rounding of one process with several tasks.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback

from chimera.paths import ROOT
from tests.torture.job import arguments, rows

#: Steps of the run, the step from which a fault comes, and seconds that a run may take in all.
STEPS, FROM, PATIENCE = 300, 40, 1800
#: Seconds after a requeue before a node takes the job again: it has revoked the job's credential.
SETTLE = 15.0
LENGTH = [f"trainer.max_steps={STEPS}", "trainer.checkpoint_every_n_steps=100000"]
LENGTH += ["trainer.val_check_interval=0", "trainer.progress=none"]
LENGTH += ["+callbacks.pace._target_=tests.sweep.slurm_faults.Pace"]
CLUSTER = ["launcher=submitit", "launcher.cpus=1", "launcher.grace=40"]
#: A model that does not multiply rounding, with a batch that processes can share; the largest
#: relative difference of a step's loss between one process and several.
SHARED, ROUNDING = ["quant=none", "norm=rmsnorm", "data.batch_size=16"], 1e-6


class Pace(Callback):
    """Sleeps after each step, so that a fault finds the run in the middle of its training.

    Slurm looks every thirty seconds for jobs near their limit.
    """

    def on_before_zero_grad(self, *_: Any) -> None:
        time.sleep(0.15)


def available() -> str:
    """Why no fault can be planted here; empty if one can."""
    if shutil.which("sbatch") is None:
        return "sbatch is not installed: apt-get install slurm-wlm munge"
    if subprocess.run(["sinfo"], capture_output=True).returncode:
        return 'no Slurm answers: tools/slurm_local.sh start; eval "$(tools/slurm_local.sh env)"'
    return ""


class Trial:
    """One sweep of one job of so many tasks below a folder."""

    def __init__(self, folder: Path, tasks: int = 1) -> None:
        self.folder, self.run, self.tasks = folder, folder / "runs" / "run", tasks
        self.run.parent.mkdir(parents=True, exist_ok=True)
        self.arguments = [*arguments(folder, self.run), *LENGTH, *(SHARED if tasks > 1 else [])]

    def submit(self, *more: str) -> subprocess.Popen[bytes]:
        """Start the sweep with its job on the cluster."""
        return self.drive(*CLUSTER, f"launcher.tasks_per_node={self.tasks}", *more)

    def training(self, *more: str) -> subprocess.Popen[bytes]:
        """Start the sweep; return when its job is in the middle of its training."""
        driver = self.submit(*more)
        until(lambda: self.step > FROM, "training")
        return driver

    def saved(self) -> None:
        """Wait for the save."""
        until(lambda: self.status("state") == "STOPPED", "the save")

    def drive(self, *launcher: str) -> subprocess.Popen[bytes]:
        """Start the sweep."""
        command = [sys.executable, str(ROOT / "train.py"), "-m", *self.arguments, *launcher]
        environment = os.environ | {"CHIMERA_RUNS": str(self.folder / "runs")}
        with (self.folder / "driver.txt").open("ab") as log:
            return subprocess.Popen(command, env=environment, stdout=log, stderr=log)

    def status(self, key: str) -> object:
        try:
            return json.loads((self.run / "status.json").read_text()).get(key)
        except FileNotFoundError:
            return None

    @property
    def step(self) -> int:
        """Rows of the step log."""
        file = self.run / "steps.csv"
        return len(file.read_text().splitlines()) - 1 if file.exists() else 0

    @property
    def job(self) -> str:
        """Number of the Slurm job."""
        return (self.folder / "runs" / ".slurm" / "run.job").read_text().split()[1]

    def losses(self) -> list[float]:
        return [float(row["loss"]) for row in rows(self.run)]

    def difference(self, expected: list[float]) -> float:
        """Largest relative difference of a step's loss; infinite if steps are missing."""
        losses = self.losses()
        if len(losses) != len(expected):
            return float("inf")
        return max(abs(a - b) / abs(b) for a, b in zip(losses, expected, strict=True))

    def resumed(self) -> list[str]:
        """What the run said each time it went on."""
        log = (self.run / "log.txt").read_text().splitlines()
        return [line for line in log if "resuming" in line]


def until(condition: Callable[[], object], what: str, seconds: float = PATIENCE) -> None:
    """Wait for a condition.

    Raises:
        TimeoutError: it did not come.
    """
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} did not happen in {seconds} s")
        time.sleep(0.3)


def slurm(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def reference(folder: Path, tasks: int = 1) -> list[float]:
    """Losses of the undisturbed run, in one process."""
    trial = Trial(folder / f"reference-{tasks}", tasks)
    if trial.drive("launcher=local").wait():
        raise RuntimeError((trial.folder / "driver.txt").read_text())
    return trial.losses()


def time_limit(trial: Trial) -> int:
    """The end of the allocation is moved near; Slurm looks at it every thirty seconds."""
    driver = trial.training()
    end = (datetime.now() + timedelta(seconds=75)).strftime("%Y-%m-%dT%H:%M:%S")
    slurm("scontrol", "update", f"jobid={trial.job}", f"EndTime={end}")
    trial.saved()
    _release(trial.job, "TimeLimit=60")
    return driver.wait(PATIENCE)


def requeue(trial: Trial) -> int:
    driver = trial.training()
    slurm("scontrol", "requeue", trial.job)
    trial.saved()
    _release(trial.job)
    return driver.wait(PATIENCE)


def preempted(trial: Trial) -> int:
    driver = trial.training("launcher.partition=main")
    nodes = slurm("sinfo", "-h", "-o", "%c").strip().splitlines()[0]
    slurm("sbatch", "-p", "urgent", "-c", nodes, "-o", "/dev/null", "--wrap", "sleep 5")
    trial.saved()
    return driver.wait(PATIENCE)


def node_down(trial: Trial) -> int:
    driver = trial.training()
    node = slurm("sinfo", "-h", "-o", "%n").split()[0]
    slurm("scontrol", "update", f"nodename={node}", "state=down", "reason=test")
    time.sleep(5)
    # Slurm refuses this of a node that has come back by itself (ReturnToService=2).
    subprocess.run(["scontrol", "update", f"nodename={node}", "state=resume"], capture_output=True)
    _release(trial.job)
    return driver.wait(PATIENCE)


def drain(trial: Trial) -> int:
    driver = trial.training()
    node = slurm("sinfo", "-h", "-o", "%n").split()[0]
    slurm("scontrol", "update", f"nodename={node}", "state=drain", "reason=test")
    code = driver.wait(PATIENCE)
    slurm("scontrol", "update", f"nodename={node}", "state=resume")
    return code


def scancel(trial: Trial) -> int:
    driver = trial.training()
    slurm("scancel", trial.job)
    if driver.wait(PATIENCE) != 1:
        raise RuntimeError("the sweep did not say that its job failed")
    return trial.submit().wait(PATIENCE)  # the same command


def lost_driver(trial: Trial) -> int:
    driver = trial.training()
    job = trial.job
    driver.kill()
    driver.wait()
    code = trial.submit().wait(PATIENCE)
    if trial.job != job:
        raise RuntimeError("the second sweep queued the job again")
    return code


def _start_now() -> None:
    """Start requeued jobs, which wait for a begin time, two minutes later by default."""
    for line in slurm("squeue", "--me", "-h", "-t", "PENDING", "-o", "%i %r").splitlines():
        if "BeginTime" in line:
            slurm("scontrol", "update", f"jobid={line.split()[0]}", "StartTime=now")


def _release(job: str, *changes: str) -> None:
    until(lambda: "PENDING" in slurm("squeue", "-h", "-j", job, "-o", "%T"), "the requeue")
    time.sleep(SETTLE)
    if changes:
        slurm("scontrol", "update", f"jobid={job}", *changes)
    _start_now()


FAULTS: dict[str, Callable[[Trial], int]] = {
    "scontrol requeue": requeue,
    "time limit": time_limit,
    "preemption": preempted,
    "node down": node_down,
    "drain": drain,
    "scancel": scancel,
    "lost driver": lost_driver,
}


def check(fault: str, folder: Path, expected: list[float], tasks: int = 1) -> tuple[str, float]:
    """Plant a fault; returns what happened and the seconds."""
    began = time.monotonic()
    trial = Trial(folder / f"{fault.replace(' ', '_')}-{tasks}", tasks)
    code = FAULTS[fault](trial)
    seconds = time.monotonic() - began
    difference = trial.difference(expected)
    saves = ", ".join(re.findall(r"at step (\d+)", "\n".join(trial.resumed())))
    facts = [
        f"saved and went on at step {saves}" if saves else "not stopped",
        str(trial.status("state")),
    ]
    if difference <= (0 if tasks == 1 else ROUNDING):
        facts.append(f"same losses (to {difference:.1e})" if difference else "same losses")
    else:
        facts.append(f"OTHER LOSSES (by {difference:.1e})")
    facts += [f"exit code {code}"] if code else []
    return ", ".join(facts), seconds


def main(words: list[str]) -> int:
    """Print the table; returns 1 if a run did not end DONE with the same losses."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--tasks", type=int, nargs="+", default=[1, 2], help="of the job")
    parser.add_argument("fault", nargs="*", choices=[*FAULTS, []])
    options = parser.parse_args(words)
    if why := available():
        print(f"error: {why}", file=sys.stderr)
        return 2
    good = True
    with tempfile.TemporaryDirectory(prefix="slurm-") as name:
        folder = Path(name)
        print("| fault | tasks | what happened | seconds |\n| --- | --- | --- | --- |", flush=True)
        for tasks in options.tasks:
            expected = reference(folder, tasks)
            for fault in options.fault or FAULTS:
                try:
                    happened, seconds = check(fault, folder, expected, tasks)
                except (TimeoutError, RuntimeError, subprocess.SubprocessError) as error:
                    happened, seconds = f"FAILED: {error}", 0.0
                good &= "DONE, same losses" in happened and "exit code" not in happened
                print(f"| {fault} | {tasks} | {happened} | {seconds:.0f} |", flush=True)
    return int(not good)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
