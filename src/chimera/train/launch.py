"""Start the processes of a run, `trainer.devices` of them on this machine.

torchrun and srun start them as well; then nothing is started here. The command stays as their
parent: it passes signals on, ends all when one fails, and returns one exit code. Does not import
torch.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from chimera import world
from chimera.errors import UserError
from chimera.paths import CHECKOUT
from chimera.program import job, on_stop
from chimera.rundir.directory import RunDir

#: Seconds that the others have to end by themselves when one process has failed: the first one that
#: is left may be saving, the others have nothing to save.
FIRST_ENDS = 60.0
OTHERS_END = 5.0
#: Seconds between two looks at the processes.
LOOK = 0.05
#: Tells a started process who its parent is; it stops when that process has ended.
PARENT = "CHIMERA_PARENT"
Process = subprocess.Popen[bytes]


def check(config: Mapping[str, Any]) -> None:
    """Refuse numbers of processes that cannot be, and batches that they cannot share.

    Raises:
        UserError: one line.
    """
    trainer = config["trainer"]
    devices = trainer["devices"]
    nodes = trainer.get("num_nodes") or 1
    size = devices * nodes
    started, who = _started(config)
    if started > 1 and size not in (1, started):
        raise UserError(
            f"trainer.devices={devices} on trainer.num_nodes={nodes} is {size} processes, but"
            f" {who} {started}; leave both out, or make them agree"
        )
    if nodes > 1 and started == 1:
        raise UserError(_needs_launcher(nodes, devices))
    size = max(size, started)
    sharded = trainer["strategy"] == "fsdp" and size > 1
    if sharded and config["precision"] == "fp16":
        raise UserError(
            "trainer.strategy=fsdp does not go with precision=fp16: each process would scale its"
            " own shards; use precision=bf16, or trainer.strategy=ddp"
        )
    if sharded and config["model"].get("dtype") == "nf4":
        raise UserError(
            "trainer.strategy=fsdp does not go with model.dtype=nf4: a shard of codes has no scales"
            " of its own; use model.dtype=bf16, or trainer.strategy=ddp"
        )
    batch_size = config["data"].get("batch_size")
    if isinstance(batch_size, int) and batch_size % size:
        raise UserError(
            f"data.batch_size={batch_size} cannot be shared evenly by {size} processes; it is the"
            f" batch of all of them, so use a multiple of {size}"
        )


def _started(config: Mapping[str, Any]) -> tuple[int, str]:
    """Processes that a launcher has started, or that the launcher of a sweep starts for a job."""
    if (by := world.launcher()) is not None:
        return world.world_size(), f"{by} has started"
    launcher = config.get("launcher") or {}
    tasks = int(launcher.get("nodes") or 1) * int(launcher.get("tasks_per_node") or 1)
    return tasks, "launcher.nodes times launcher.tasks_per_node is"


def _needs_launcher(nodes: int, devices: int) -> str:
    script = "train.py" if CHECKOUT is not None else "-m chimera train"
    return (
        f"trainer.num_nodes={nodes} needs a launcher on each node; start it with srun, or with"
        f" torchrun --nnodes={nodes} --nproc-per-node={devices} {script} ..."
    )


def launch(config: Mapping[str, Any], overrides: Sequence[str]) -> int | None:
    """Start the processes of a checked run and wait for them.

    Args:
        config: of the run.
        overrides: of its command line, which every process gets.

    Returns:
        The exit code of all; None if this process is to train itself.

    Raises:
        UserError: the run has other nodes, whose processes this one cannot start.
    """
    count = config["trainer"]["devices"]
    if world.launcher() is not None:
        return None
    if (nodes := config["trainer"].get("num_nodes") or 1) > 1:
        raise UserError(_needs_launcher(nodes, count))
    if count == 1:
        return None
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    threads = str(max(1, (os.cpu_count() or 1) // count))
    common = {
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
        "GROUP_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", threads),
        PARENT: str(os.getpid()),
    }
    command = job(overrides)
    processes = [
        subprocess.Popen(
            command,
            env={**os.environ, **common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            start_new_session=True,  # Ctrl-C reaches them once, through this process
        )
        for rank in range(count)
    ]
    code = wait(processes)
    if code:
        directory = RunDir.of(dict(config))
        if directory.status().get("state") == "RUNNING" and not directory.is_running():
            directory.mark_failed("its processes were ended from outside")
    return code


def wait(processes: Sequence[Process]) -> int:
    """Wait for all, passing signals on; returns the code of the first that failed, else 0."""

    def pass_on(number: int, _: object) -> None:
        for process in _alive(processes):
            process.send_signal(number)

    with on_stop(pass_on):
        while not (failed := [each for each in processes if each.poll()]) and _alive(processes):
            time.sleep(LOOK)
        if failed:
            _end(processes)
    for process in failed:
        if (code := process.returncode) < 0:
            name = signal.Signals(-code).name
            full = " (if nobody did, memory was full: lower data.batch_size)"
            print(
                f"error: process {processes.index(process)} of {len(processes)} was ended by"
                f" {name}{full if name == 'SIGKILL' else ''}; start the same command again to"
                " resume from the last checkpoint",
                file=sys.stderr,
            )
            return 128 - code
    return failed[0].returncode if failed else 0


def _alive(processes: Sequence[Process]) -> list[Process]:
    return [process for process in processes if process.poll() is None]


def _end(processes: Sequence[Process]) -> None:
    """Wait for those that are still there, then kill them."""
    began = time.monotonic()
    while alive := _alive(processes):
        for number, process in enumerate(alive):
            late = time.monotonic() - began > (OTHERS_END if number else FIRST_ENDS)
            if late or _is_stopped(process):
                process.kill()
        time.sleep(LOOK)


def _is_stopped(process: Process) -> bool:
    """Whether a process is stopped by a signal or a debugger: it will not end by itself."""
    try:
        state = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state in "Tt"
