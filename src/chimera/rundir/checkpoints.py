"""Checkpoint files, their checksums and tiers (SPEC T4; TITAN Table 4). Free of torch.

`<name>.ckpt` has `<name>.ckpt.json` beside it: step, epoch, validation loss, whether a run can go
on from it, and the sha256 of the bytes. The sidecar is written first. Where it replaces one it
keeps that one's checksum too, so that between the two writes the old file is known as valid.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from chimera.rundir.atomic import write_atomic

TIERS = ("rolling", "best", "epoch", "emergency")
_NAME = re.compile(r"(rolling|best|epoch)-(\d+)|emergency")


class Invalid(Exception):  # noqa: N818 - a finding, not a failure
    """Why a file is no checkpoint to rely on."""


@dataclass(frozen=True)
class Facts:
    """What the sidecar says.

    Args:
        step: optimiser steps taken.
        epoch: from 0.
        resumable: taken between two optimiser steps, with all of the loop's state.
        loss: of the validation at this step, if there was one.
        sha256: of the file; of the one that it replaces, too.
    """

    step: int
    epoch: int = 0
    resumable: bool = True
    loss: float | None = None
    sha256: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Found:
    """The checkpoint to go on from, and what was passed over on the way to it, with the reason."""

    path: Path | None
    step: int
    passed_over: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        head = f"resuming from {self.path} at step {self.step}" if self.path else "no checkpoint"
        return "; ".join(
            [head, *(f"passed over {n} ({why})" for n, why in sorted(self.passed_over.items()))]
        )


def sidecar(path: Path) -> Path:
    """The file with the checksum."""
    return path.with_name(f"{path.name}.json")


def facts(path: Path) -> Facts:
    """What the sidecar of a checkpoint says.

    Raises:
        Invalid: there is none, or it cannot be read.
    """
    try:
        return Facts(**json.loads(sidecar(path).read_text(encoding="utf-8")))
    except FileNotFoundError as error:
        raise Invalid("no checksum beside it") from error
    except (ValueError, TypeError) as error:
        raise Invalid("its checksum file cannot be read") from error


def verify(path: Path) -> Facts:
    """The facts of a checkpoint whose bytes are what was written.

    Raises:
        Invalid: they are not.
    """
    known = facts(path)
    try:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError as error:
        raise Invalid("a link to nothing" if path.is_symlink() else "missing") from error
    except OSError as error:
        raise Invalid(f"cannot be read ({error.strerror})") from error
    if digest not in known.sha256:
        raise Invalid("its bytes do not match its checksum")
    return known


def publish(temporary: Path, path: Path, known: Facts) -> None:
    """Give a written and synced file its name, so that at any moment a kill leaves a valid one.

    `temporary` stays; it may be given several names, which then share its bytes on disk.
    """
    before: list[str] = []
    if path.exists():
        try:
            before = facts(path).sha256[:1]
        except Invalid:
            before = []
    known = replace(known, sha256=[*known.sha256[:1], *before])
    write_atomic(sidecar(path), json.dumps(asdict(known)) + "\n")
    name = path.with_name(f".{path.name}.{os.getpid()}")
    name.unlink(missing_ok=True)
    os.link(temporary, name)
    os.replace(name, path)
    sync_folder(path.parent)


def point(link: Path, to: Path) -> None:
    """Make a name that users know (`last.ckpt`, `best.ckpt`) lead to a checkpoint."""
    temporary = link.with_name(f".{link.name}.{os.getpid()}")
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(to.name)
    os.replace(temporary, link)


def remove(path: Path) -> None:
    """Delete a checkpoint with its checksum."""
    path.unlink(missing_ok=True)
    sidecar(path).unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Make renames durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def prepare(folder: Path, *, fresh: bool = False) -> Found:
    """Put the folder in order and find what to go on from; only for who has claimed the run.

    What a killed process was writing is deleted. What is no valid checkpoint is set aside as
    `*.invalid`, so that it counts in no tier.

    Args:
        folder: of the checkpoints.
        fresh: start over: all is deleted.
    """
    for file in folder.glob(".*"):
        file.unlink()
    if fresh:
        for file in folder.glob("*.ckpt*"):
            file.unlink()
    found = newest(folder)
    for name in found.passed_over:
        path = folder / name
        if path.exists():
            os.replace(path, folder / f"{name}.invalid")
        remove(path)
    return found


def tier(folder: Path, name: str) -> list[Path]:
    """The files of a tier by their number, the oldest first. What is there counts, nothing else."""
    numbered = [(int(m[2] or 0), p) for p, m in _named(folder) if m[0].startswith(name)]
    return [path for _, path in sorted(numbered)]


def best(folder: Path) -> list[tuple[float, Path]]:
    """Validation loss and file of the best ones, the best first."""
    out = []
    for path in tier(folder, "best"):
        try:
            loss = facts(path).loss
        except Invalid:
            continue
        if loss is not None:
            out.append((loss, path))
    return sorted(out)


def newest(folder: Path, *, resumable: bool = True) -> Found:
    """The valid checkpoint with the most steps; of two with the same, the rolling one.

    Args:
        folder: of the checkpoints.
        resumable: leave out those that a run cannot go on from.
    """
    candidates: list[tuple[int, int, Path]] = []
    passed_over: dict[str, str] = {}
    for path, match in _named(folder):
        try:
            known = facts(path)
        except Invalid as why:
            passed_over[path.name] = str(why)
            continue
        if known.resumable or not resumable:
            order = -TIERS.index(match[1] or "emergency")
            candidates.append((known.step, order, path))
    for step, _, path in sorted(candidates, reverse=True):
        try:
            verify(path)
        except Invalid as why:
            passed_over[path.name] = str(why)
            continue
        return Found(path, step, passed_over)
    return Found(None, 0, passed_over)


def _named(folder: Path) -> Iterator[tuple[Path, re.Match[str]]]:
    """Checkpoints of all tiers, those among them of which only the checksum is left."""
    names = {p.name.removesuffix(".json") for p in folder.glob("*.ckpt*")}
    for name in sorted(names):
        match = _NAME.fullmatch(name.removesuffix(".ckpt"))
        if match and name.endswith(".ckpt"):
            yield folder / name, match
