"""How Lightning writes and reads checkpoints here: whole or not at all, checked, and safely.

A file is written beside its target, hashed on the way, synced, and then given its name.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

import torch
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO

from chimera.rundir import checkpoints as files


class CheckedIO(TorchCheckpointIO):
    """Lightning's own with other writing; `checkpoint["chimera"]` holds more of the facts."""

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None
    ) -> None:
        target = Path(path)
        temporary = target.with_name(f".write-{target.name}.{os.getpid()}")
        try:
            digest = write(checkpoint, temporary)
            known = files.Facts(
                step=checkpoint["global_step"],
                epoch=checkpoint["epoch"],
                **checkpoint.get("chimera", {}),
                sha256=[digest],
            )
            files.publish(temporary, target, known)
        finally:
            temporary.unlink(missing_ok=True)

    def load_checkpoint(
        self,
        path: Any,
        map_location: Callable[..., Any] | None = lambda storage, _: storage,
        weights_only: bool | None = True,
    ) -> dict[str, Any]:
        """Plain values and tensors only, whatever was asked: a checkpoint runs no code."""
        return load(Path(path), map_location)


def load(path: Path, map_location: Any = "cpu") -> dict[str, Any]:
    """A checkpoint's contents, nothing in it executed."""
    found = torch.load(path, map_location=map_location, weights_only=True)
    assert isinstance(found, dict)
    return found


def finite(path: Path) -> bool:
    """Whether all weights and buffers of a checkpoint are finite."""
    tensors = load(path)["state_dict"].values()
    return all(bool(torch.isfinite(t).all()) for t in tensors if t.is_floating_point())


def write(checkpoint: dict[str, Any], path: Path) -> str:
    """Write to a file, through to the disk; returns the sha256 of what was written."""
    with path.open("wb") as file:
        hashing = _Hashing(file)
        torch.save(checkpoint, cast(IO[bytes], hashing))
        if hashing.error:
            raise hashing.error
        file.flush()
        os.fsync(file.fileno())
    return hashing.digest.hexdigest()


class _Hashing:
    """A file to write to that hashes on the way, so that it need not be read again.

    It keeps an error to itself until all is done: torch's writer aborts the process on one.
    """

    def __init__(self, file: BinaryIO) -> None:
        self.file, self.digest = file, hashlib.sha256()
        self.error: OSError | None = None

    def write(self, data: bytes) -> int:
        if self.error is None:
            try:
                self.digest.update(data)
                self.file.write(data)
            except OSError as error:
                self.error = error
        return len(data)

    def flush(self) -> None:
        self.file.flush()
