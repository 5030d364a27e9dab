"""Plant faults into a child process: kills, exceptions and full disks at a chosen moment."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from chimera.callback.log.steps import StepLog
from chimera.rundir import checkpoint_io as io
from chimera.rundir import checkpoints as files
from chimera.task.base import Task
from chimera.task.mlm import MaskedLM


def die(*_: Any) -> None:
    """Kill this process by SIGKILL."""
    os.kill(os.getpid(), signal.SIGKILL)


def fail(*_: Any) -> None:
    raise RuntimeError("planted")


def no_room(*_: Any) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def plant(
    owner: Any, name: str, number: int, act: Callable[..., None] = die, *,
    after: bool = False, onwards: bool = False,
) -> None:  # fmt: skip
    """Wrap a function so that `act(*its arguments)` runs before its n-th call, or after it.

    Args:
        owner: class or module.
        name: of the function.
        number: n, from 1.
        act: what happens.
        after: the call instead of before it.
        onwards: also at every later call.
    """
    function, calls = getattr(owner, name), 0

    def wrapped(*given: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        due = calls == number or (onwards and calls > number)
        if due and not after:
            act(*given)
        result = function(*given, **named)
        if due and after:
            act(*given)
        return result

    setattr(owner, name, wrapped)


def _half(_: Any, path: Path) -> None:
    """Only half of a checkpoint's bytes are written."""
    os.truncate(path, path.stat().st_size // 2)
    die()


def _torn(number: int) -> None:
    """Kill in the middle of the row of step n of the step log."""

    def torn(log: StepLog, row: Any) -> None:
        if str(list(row)[3]) == str(number):
            log._file.write(b"2026-01-01T00:00:00+00:00,0,1,")
            die()

    plant(StepLog, "_write", 1, torn, onwards=True)


def _of_step(number: int) -> None:
    """Kill after the checksum of step n's rolling checkpoint is written, before its file is."""

    def checksum(path: Path, _: str) -> None:
        if path.name == f"rolling-{number}.ckpt.json":
            die()

    plant(files, "write_atomic", 1, checksum, after=True, onwards=True)


#: Plants a SIGKILL at the n-th occurrence of a moment.
KILLS: dict[str, Callable[[int], None]] = {
    "micro-batch": lambda n: plant(MaskedLM, "training_step", n),
    "update": lambda n: plant(Task, "configure_gradient_clipping", n),
    "validation": lambda n: plant(MaskedLM, "validation_step", n),
    "test": lambda n: plant(MaskedLM, "test_step", n),
    "row": _torn,
    "save, writing": lambda n: plant(io, "write", n, _half, after=True),
    "save, between": lambda n: plant(files, "write_atomic", n, after=True),
    "save, named": lambda n: plant(files, "sync_folder", n),
    "save of step": _of_step,
}


def kill_at(moment: str, number: int) -> Callable[[], None]:
    """A function that plants a SIGKILL at the n-th occurrence of a moment, a key of KILLS."""
    return lambda: KILLS[moment](number)


def raise_at(number: int) -> Callable[[], None]:
    """A function that plants an exception in the n-th micro-batch."""
    return lambda: plant(MaskedLM, "training_step", number, fail)


class FullDisk:
    """A file on a disk with 20 free bytes."""

    def __init__(self, file: Any) -> None:
        self.file = file
        self.room = 20

    def write(self, data: bytes) -> int:
        if not self.room:
            no_room()
        taken = self.file.write(bytes(data)[: self.room])
        self.room -= taken
        return int(taken)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)


def _fill(attribute: str) -> Callable[..., None]:
    return lambda owner, *_: setattr(owner, attribute, FullDisk(getattr(owner, attribute)))


#: Plants a full disk from the n-th write of a file on.
FULL: dict[str, Callable[[int], None]] = {
    "checkpoint": lambda n: plant(
        io._Hashing, "__init__", n, _fill("file"), after=True, onwards=True
    ),
    "sidecar": lambda n: plant(files, "write_atomic", n, no_room, onwards=True),
    "row": lambda n: plant(StepLog, "_write", n, _fill("_file")),
}


def full_at(file: str, number: int) -> Callable[[], None]:
    """A function that plants a full disk from the n-th write of a file on, a key of FULL."""
    return lambda: FULL[file](number)
