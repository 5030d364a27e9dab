"""Plant faults into a process that trains: kills, exceptions, full disks, numbers not finite."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from chimera.callback.log.steps import Step, StepLog
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


def half_a_save(_: Any, path: Path) -> None:
    """Only half of a checkpoint's bytes are written."""
    os.truncate(path, path.stat().st_size // 2)
    die()


def kill_at(moment: str, number: int) -> None:
    """Kill at the n-th occurrence of a moment.

    Args:
        moment: micro-batch, update, validation, test; row, in the middle of that of step n; a
            save while it is written, between its file and its checksum, or when it gets its name;
            the save of step n between them.
        number: n.
    """

    def torn(log: StepLog, step: Step) -> None:
        if step.global_step == number:
            log._rows.file.write(b"2026-01-01T00:00:00+00:00,0,1,")  # type: ignore[union-attr]
            die()

    def checksum(path: Path, _: str) -> None:
        if path.name == f"rolling-{number}.ckpt.json":
            die()

    match moment:
        case "micro-batch":
            plant(MaskedLM, "training_step", number)
        case "update":
            plant(Task, "configure_gradient_clipping", number)
        case "validation" | "test":
            plant(MaskedLM, f"{moment}_step", number)
        case "row":
            plant(StepLog, "on_step", 1, torn, onwards=True)
        case "save, writing":
            plant(io, "write", number, half_a_save, after=True)
        case "save, between":
            plant(files, "write_atomic", number, after=True)
        case "save, named":
            plant(files, "sync_folder", number)
        case "save of step":
            plant(files, "write_atomic", 1, checksum, after=True, onwards=True)


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


def full_at(file: str, number: int) -> None:
    """The disk is full from the n-th write of a checkpoint, sidecar or row on."""
    match file:
        case "checkpoint":
            plant(io._Hashing, "__init__", number, _fill("file"), after=True, onwards=True)
        case "sidecar":
            plant(files, "write_atomic", number, no_room, onwards=True)
        case "row":
            plant(StepLog, "on_step", number, lambda log, _: _fill("file")(log._rows))


def poison(
    kind: str, value: str, *, micro_batch: int = 0, samples: list[int] | None = None
) -> None:
    """A numerical fault in batches of certain samples, so that a replay has the fault too.

    Args:
        kind: place of the fault: loss, gradient or weight.
        value: nan or inf.
        micro_batch: the n-th one; its samples are found then. Without samples too, every one.
        samples: indices of the samples; other epochs group them differently.
    """
    original, number, calls = MaskedLM.outputs, float(value), 0

    def outputs(task: MaskedLM, batch: dict[str, Any]) -> Any:
        nonlocal calls, samples
        calls += task.training
        if samples is None and task.training and calls == micro_batch:
            samples = batch["indices"].tolist()
        every = samples is None and not micro_batch
        if not task.training or not (every or batch["indices"].tolist() == samples):
            return original(task, batch)
        table = next(task.model.parameters())
        if kind == "weight":
            with torch.no_grad():
                table.view(-1)[3] = number
        out = original(task, batch)
        if kind == "gradient":  # the forward pass stays finite
            table.register_hook(lambda g: torch.full_like(g, number))
        return replace(out, loss=out.loss + number) if kind == "loss" else out

    MaskedLM.outputs = outputs  # type: ignore[method-assign]
