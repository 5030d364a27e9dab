"""Start the processes of a run, `trainer.devices` of them on this machine.

torchrun and srun start them as well; then nothing is started here. The command stays as their
parent: it passes signals on, ends all when one fails, and returns one exit code. Does not import
torch.
"""

from __future__ import annotations

import os
import secrets
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
from chimera.program import job
from chimera.rundir.directory import RunDir
from chimera.rundir.stand_in import mark_ended

#: Seconds that the others have to end by themselves when one process has failed: the first one that
#: is left may be saving, the others have nothing to save.
FIRST_ENDS, OTHERS_END = 60.0, 5.0
#: Tells a started process who its parent is; it stops when that process has ended.
PARENT = "CHIMERA_PARENT"


def check(config: Mapping[str, Any]) -> None:
    """Refuse numbers of processes that cannot be, and batches that they cannot share.

    Raises:
        UserError: one line.
    """
    trainer = config["trainer"]
    devices, nodes = trainer["devices"], trainer.get("num_nodes") or 1
    by, size, tasks = world.launcher(), devices * nodes, _tasks(config)
    if by is not None:
        if size not in (1, world.world_size()):
            raise UserError(
                f"trainer.devices={devices} on trainer.num_nodes={nodes} is {size} processes, but"
                f" {by} has started {world.world_size()}; leave both out, or make them agree"
            )
        size = world.world_size()
    elif tasks > 1:
        if size not in (1, tasks):
            raise UserError(
                f"trainer.devices={devices} on trainer.num_nodes={nodes} is {size} processes, but"
                f" launcher.nodes times launcher.tasks_per_node is {tasks}; leave both out, or make"
                " them agree"
            )
        size = tasks
    elif nodes > 1:
        raise UserError(_needs_launcher(nodes, devices))
    if trainer["strategy"] == "fsdp" and config["precision"] == "fp16" and size > 1:
        raise UserError(
            "trainer.strategy=fsdp does not go with precision=fp16: each process would scale its"
            " own shards; use precision=bf16, or trainer.strategy=ddp"
        )
    batch_size = config["data"].get("batch_size")
    if isinstance(batch_size, int) and batch_size % size:
        raise UserError(
            f"data.batch_size={batch_size} cannot be shared evenly by {size} processes; it is the"
            f" batch of all of them, so use a multiple of {size}"
        )


def _tasks(config: Mapping[str, Any]) -> int:
    """Processes that the launcher of a sweep starts for a job."""
    launcher = config.get("launcher") or {}
    return int(launcher.get("nodes") or 1) * int(launcher.get("tasks_per_node") or 1)


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
        "CHIMERA_RUN": secrets.token_hex(4),
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
    code = _Group(processes).wait()
    if code:
        why = "its processes were ended from outside"
        mark_ended(RunDir.of(dict(config)), [process.pid for process in processes], why)
    return code


class _Group:
    """Started processes. Signals that this process gets are passed on to all of them."""

    def __init__(self, processes: list[subprocess.Popen[bytes]]) -> None:
        self.processes = processes

    def wait(self) -> int:
        """Wait for all; returns the code of the first that failed, else 0."""
        before = {n: signal.signal(n, self._pass_on) for n in (signal.SIGINT, signal.SIGTERM)}
        try:
            while not (failed := self._failed()) and self._alive():
                time.sleep(0.05)
            if failed:
                self._end()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        return self._code(failed)

    def _failed(self) -> list[int]:
        """Ranks of processes that have failed."""
        return [rank for rank, process in enumerate(self.processes) if process.poll()]

    def _alive(self) -> list[subprocess.Popen[bytes]]:
        return [process for process in self.processes if process.poll() is None]

    def _end(self) -> None:
        """Wait for those that are still there, then kill them."""
        began = time.monotonic()
        while alive := self._alive():
            waited = time.monotonic() - began
            for number, process in enumerate(alive):
                if waited > (OTHERS_END if number else FIRST_ENDS) or _is_stopped(process):
                    process.kill()
            time.sleep(0.05)

    def _code(self, failed: list[int]) -> int:
        if not failed:
            return 0
        codes = [self.processes[rank].returncode for rank in failed]
        for rank, code in zip(failed, codes, strict=True):
            if code < 0:
                name = signal.Signals(-code).name
                full = " (if nobody did, memory was full: lower data.batch_size)"
                print(
                    f"error: process {rank} of {len(self.processes)} was ended by {name}"
                    f"{full if name == 'SIGKILL' else ''}; start the"
                    " same command again to resume from the last checkpoint",
                    file=sys.stderr,
                )
                return 128 - code
        return codes[0]

    def _pass_on(self, number: int, _: object) -> None:
        for process in self._alive():
            process.send_signal(number)


def _is_stopped(process: subprocess.Popen[bytes]) -> bool:
    """Whether a process is stopped by a signal or a debugger: it will not end by itself."""
    try:
        state = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state in "Tt"
