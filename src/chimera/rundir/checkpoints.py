"""Checkpoint files, their checksums and tiers (SPEC T4; TITAN Table 4). Does not import torch.

`<name>.ckpt` has a sidecar `<name>.ckpt.json`: step, epoch, validation loss, whether a run can
resume from the checkpoint, and the sha256 of its bytes. The sidecar is written before the
checkpoint. When a checkpoint is replaced, the new sidecar also holds the old checksum, so that the
old file is still valid between the two writes.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from chimera.errors import UserError
from chimera.safe_io import check_fields, read_json, replacing, sha256_of, write_atomic

#: Links to the newest and the best checkpoint.
LINKS = ("last.ckpt", "best.ckpt")
TIERS = ("rolling", "best", "epoch", "emergency")
_NAME = re.compile(r"(rolling|best|epoch)-(\d+)|emergency")
#: A checkpoint, the state of a run whose weights are not finite, their sidecars, damaged ones.
FILE = re.compile(rf"({_NAME.pattern}|broken)\.ckpt(\.json)?(\.invalid)?")


class InvalidCheckpoint(Exception):  # noqa: N818 - caught and reported, no failure of the program
    """A checkpoint is missing, damaged or without a checksum; the message is the reason."""


#: Error numbers of a file system that has no hard links, or no more of them.
NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


@dataclass(frozen=True)
class Sidecar:
    """Contents of the JSON file beside a checkpoint.

    Args:
        step: optimiser steps taken.
        epoch: number of the epoch, from 0.
        resumable: saved between two optimiser steps, with the complete state of the loop.
        loss: of the validation at this step, if there was one.
        sha256: of the checkpoint, followed by that of the file it replaces, if any.
    """

    step: int
    epoch: int = 0
    resumable: bool = True
    loss: float | None = None
    sha256: list[str] = field(default_factory=list)


#: Types of a sidecar's fields.
FIELDS: dict[str, Any] = {
    "step": int,
    "epoch": int,
    "resumable": bool,
    "loss": (int, float, type(None)),
    "sha256": list,
}


@dataclass(frozen=True)
class ResumePoint:
    """The checkpoint to resume from, and the rejected ones with reasons.

    Args:
        path: of the checkpoint; None if there is no valid one.
        step: optimiser steps taken; 0 without a checkpoint.
        rejected: file name to reason.
    """

    path: Path | None
    step: int
    rejected: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        start = f"resuming from {self.path} at step {self.step}" if self.path else "no checkpoint"
        rejected = (f"rejected {name} ({reason})" for name, reason in sorted(self.rejected.items()))
        return "; ".join([start, *rejected])


def sidecar_path(path: Path) -> Path:
    """Path of a checkpoint's sidecar."""
    return path.with_name(f"{path.name}.json")


def read_sidecar(path: Path) -> Sidecar:
    """Read the sidecar of a checkpoint.

    Raises:
        InvalidCheckpoint: the sidecar is missing or cannot be read.
    """
    try:
        values = read_json(sidecar_path(path))
        if not values:
            raise InvalidCheckpoint("no checksum beside it")
        check_fields(values, FIELDS, path)
        about = Sidecar(**values)
    except (UserError, TypeError) as error:
        raise InvalidCheckpoint("its checksum file cannot be read") from error
    return about


def verify(path: Path) -> Sidecar:
    """Compare the bytes of a checkpoint with its checksum; return its sidecar.

    Raises:
        InvalidCheckpoint: they differ, or the checkpoint or sidecar cannot be read.
    """
    about = read_sidecar(path)
    try:
        if path.exists() and not path.is_file():
            raise InvalidCheckpoint("no regular file")
        digest = sha256_of(path)
    except FileNotFoundError as error:
        reason = "a link to a missing file" if path.is_symlink() else "missing"
        raise InvalidCheckpoint(reason) from error
    except OSError as error:
        raise InvalidCheckpoint(f"cannot be read ({error.strerror})") from error
    if digest not in about.sha256:
        raise InvalidCheckpoint("its bytes do not match its checksum")
    return about


def announce(path: Path, about: Sidecar) -> None:
    """Write the sidecar of a checkpoint that comes next, so that the old file stays valid, too."""
    replaced: list[str] = []
    if path.exists():
        with contextlib.suppress(InvalidCheckpoint):
            replaced = read_sidecar(path).sha256[:1]
    about = replace(about, sha256=[*about.sha256[:1], *replaced])
    write_atomic(sidecar_path(path), json.dumps(asdict(about)) + "\n")


def publish(checkpoint: Path, path: Path) -> None:
    """Give a checkpoint a second name in its folder; both share its bytes where links exist."""
    with replacing(path) as name:
        announce(path, read_sidecar(checkpoint))
        try:
            os.link(checkpoint, name)
        except OSError as error:
            if error.errno not in NO_LINKS:
                raise
            shutil.copyfile(checkpoint, name)
            with name.open("rb") as file:
                os.fsync(file.fileno())
    sync_folder(path.parent)


def link(name: Path, checkpoint: Path) -> None:
    """Make a symbolic link (`last.ckpt`, `best.ckpt`) to a checkpoint of the same folder."""
    with replacing(name) as new:
        new.symlink_to(checkpoint.name)


def remove(path: Path) -> None:
    """Delete a checkpoint and its sidecar."""
    path.unlink(missing_ok=True)
    sidecar_path(path).unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Sync a folder to disk, so that renames in it survive a crash of the machine."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def prepare(folder: Path, *, fresh: bool = False) -> ResumePoint:
    """Clean the folder of checkpoints and find the one to resume from.

    Call it only while holding the run's lock. Invalid checkpoints are renamed to `*.invalid`, so
    that they count in no tier.

    Args:
        folder: of the checkpoints.
        fresh: start over: delete all checkpoints.
    """
    for file in [*folder.iterdir()] if fresh else ():
        if FILE.fullmatch(file.name) or file.name in LINKS:
            file.unlink()
    start = newest(folder)
    for name in start.rejected:
        path = folder / name
        if path.exists():
            os.replace(path, folder / f"{name}.invalid")
        remove(path)
    return start


def tier(folder: Path, name: str) -> list[Path]:
    """List the files of a tier that exist in the folder, oldest first."""
    numbered = [(int(m[2] or 0), p) for p, m in _named(folder) if m[0].startswith(name)]
    return [path for _, path in sorted(numbered)]


def best(folder: Path) -> list[tuple[float, Path]]:
    """List validation loss and file of the tier `best`, lowest loss first."""
    out = []
    for path in tier(folder, "best"):
        try:
            loss = read_sidecar(path).loss
        except InvalidCheckpoint:
            continue
        if loss is not None:
            out.append((loss, path))
    return sorted(out)


def newest(folder: Path, *, resumable: bool = True) -> ResumePoint:
    """Find the valid checkpoint with the most steps; of several, the first tier of `TIERS`.

    Args:
        folder: of the checkpoints.
        resumable: leave out checkpoints that a run cannot resume from.
    """
    candidates: list[tuple[int, int, Path]] = []
    rejected: dict[str, str] = {}
    for path, match in _named(folder):
        try:
            about = read_sidecar(path)
        except InvalidCheckpoint as reason:
            rejected[path.name] = str(reason)
            continue
        if about.resumable or not resumable:
            order = -TIERS.index(match[1] or "emergency")
            candidates.append((about.step, order, path))
    for step, _, path in sorted(candidates, reverse=True):
        try:
            verify(path)
        except InvalidCheckpoint as reason:
            rejected[path.name] = str(reason)
            continue
        return ResumePoint(path, step, rejected)
    return ResumePoint(None, 0, rejected)


def _named(folder: Path) -> Iterator[tuple[Path, re.Match[str]]]:
    """Checkpoints of all tiers, including those of which only the sidecar exists."""
    names = {p.name.removesuffix(".json") for p in folder.glob("*.ckpt*")}
    for name in sorted(names):
        match = _NAME.fullmatch(name.removesuffix(".ckpt"))
        if match and name.endswith(".ckpt"):
            yield folder / name, match
