"""Plant faults into a child process: kills, exceptions and full disks at a chosen moment."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from chimera.callback.log.step_log import StepLog
from chimera.rundir import checkpoint_io as io
from chimera.rundir import checkpoints as files
from chimera.task.base import Task
from chimera.task.mlm import MaskedLM


def die() -> None:
    """Kill this process by SIGKILL."""
    os.kill(os.getpid(), signal.SIGKILL)


def nth(number: int, act: Callable[[], None], function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function so that its n-th call runs `act()` first."""
    calls = 0

    def wrapped(*given: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == number:
            act()
        return function(*given, **named)

    return wrapped


def kill_at(moment: str, number: int) -> Callable[[], None]:
    """A function that plants a SIGKILL at the n-th occurrence of a moment, a key of PLANTS."""

    def plant() -> None:
        PLANTS[moment](number)

    return plant


def _micro(n: int) -> None:
    MaskedLM.training_step = nth(n, die, MaskedLM.training_step)  # type: ignore[method-assign]


def _update(n: int) -> None:
    Task.configure_gradient_clipping = nth(n, die, Task.configure_gradient_clipping)  # type: ignore[method-assign]


def _validation(n: int) -> None:
    MaskedLM.validation_step = nth(n, die, MaskedLM.validation_step)  # type: ignore[method-assign]


def _test(n: int) -> None:
    MaskedLM.test_step = nth(n, die, MaskedLM.test_step)  # type: ignore[method-assign]


def _row(n: int) -> None:
    """Kill in the middle of the row of step n of the step log."""
    whole = StepLog._write

    def torn(self: StepLog, row: Any) -> None:
        if str(list(row)[3]) == str(n):
            self._file.write(b"2026-01-01T00:00:00+00:00,0,1,")
            die()
        whole(self, row)

    StepLog._write = torn  # type: ignore[method-assign]


def _save_write(n: int) -> None:
    """Kill after half of the bytes of the n-th checkpoint."""
    original = io.write

    def half(checkpoint: dict[str, Any], path: Path) -> str:
        digest = original(checkpoint, path)
        os.truncate(path, path.stat().st_size // 2)
        die()
        return digest

    calls = 0

    def write(checkpoint: dict[str, Any], path: Path) -> str:
        nonlocal calls
        calls += 1
        return (half if calls == n else original)(checkpoint, path)

    io.write = write


def _save_between(n: int) -> None:
    """Kill after the n-th checksum is written, before its checkpoint is."""
    calls = 0
    original = files.write_atomic

    def write(path: Path, text: str) -> None:
        nonlocal calls
        calls += 1
        original(path, text)
        if calls == n:
            die()

    files.write_atomic = write  # type: ignore[attr-defined]


def _save_of_step(n: int) -> None:
    """Kill after the checksum of step n's rolling checkpoint is written, before its file is."""
    original = files.write_atomic

    def write(path: Path, text: str) -> None:
        original(path, text)
        if path.name == f"rolling-{n}.ckpt.json":
            die()

    files.write_atomic = write  # type: ignore[attr-defined]


def _save_after(n: int) -> None:
    """Kill after the n-th checkpoint has its name, before links and old checkpoints are updated."""
    files.sync_folder = nth(n, die, files.sync_folder)


def raise_at(number: int) -> Callable[[], None]:
    """A function that plants an exception in the n-th micro-batch."""

    def fail() -> None:
        raise RuntimeError("planted")

    def plant() -> None:
        step = nth(number, fail, MaskedLM.training_step)
        MaskedLM.training_step = step  # type: ignore[method-assign]

    return plant


def full_at(file: str, number: int) -> Callable[[], None]:
    """A function that plants a full disk from the n-th write of a file on.

    Args:
        file: checkpoint, sidecar or row.
        number: n, from 1.
    """

    def error() -> OSError:
        return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def plant() -> None:
        calls = 0

        def due() -> bool:
            nonlocal calls
            calls += 1
            return calls >= number

        hash_, sidecar, row = io._Hashing.__init__, files.write_atomic, StepLog._write

        def hashing(self: Any, file: Any) -> None:
            hash_(self, FullDisk(file) if due() else file)

        def atomic(path: Path, text: str) -> None:
            if due():
                raise error()
            sidecar(path, text)

        def torn(self: StepLog, values: Any) -> None:
            if due():
                self._file = FullDisk(self._file)  # type: ignore[assignment]
            row(self, values)

        if file == "checkpoint":
            io._Hashing.__init__ = hashing  # type: ignore[method-assign]
        if file == "sidecar":
            files.write_atomic = atomic  # type: ignore[attr-defined]
        if file == "row":
            StepLog._write = torn  # type: ignore[method-assign]

    return plant


class FullDisk:
    """A file on a disk with 20 free bytes."""

    def __init__(self, file: Any) -> None:
        self.file, self.room = file, 20

    def write(self, data: bytes) -> int:
        if not self.room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        taken = self.file.write(bytes(data)[: self.room])
        self.room -= taken
        return int(taken)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)


PLANTS: dict[str, Callable[[int], None]] = {
    "micro-batch": _micro,
    "update": _update,
    "validation": _validation,
    "test": _test,
    "row": _row,
    "save, writing": _save_write,
    "save, between": _save_between,
    "save, named": _save_after,
    "save of step": _save_of_step,
}
