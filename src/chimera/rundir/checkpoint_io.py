"""Lightning plugin that writes checkpoints atomically with checksums and reads them safely.

A checkpoint is written to a temporary file beside its target, hashed while it is written, synced
to disk, and then renamed.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import re
import struct
import sys
import warnings
import zipfile
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

import torch
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO

from chimera.errors import UserError
from chimera.rundir import checkpoints as files
from chimera.safe_io import replacing

#: Modules of packages whose tensor classes a checkpoint may hold: an optimiser's 8-bit states.
TENSOR_CLASSES = ("torchao.optim",)
#: What torch raises of bytes that are no checkpoint of tensors and plain values.
DAMAGE = (
    *(pickle.UnpicklingError, struct.error, RuntimeError, ValueError, EOFError, OSError),
    *(LookupError, AttributeError, TypeError, zipfile.BadZipFile),
)


class CheckedIO(TorchCheckpointIO):
    """Atomic, checksummed writing and weights-only reading of checkpoints.

    `checkpoint["chimera"]` holds further fields of the sidecar, such as the validation loss.
    """

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None
    ) -> None:
        target = Path(path)
        with replacing(target) as written:
            about = files.Sidecar(
                step=checkpoint["global_step"],
                epoch=checkpoint["epoch"],
                **checkpoint.get("chimera", {}),
                sha256=[write(checkpoint, written)],
            )
            files.announce(target, about)
        files.sync_folder(target.parent)

    def load_checkpoint(
        self,
        path: Any,
        map_location: Callable[..., Any] | None = lambda storage, _: storage,
        weights_only: bool | None = True,
    ) -> dict[str, Any]:
        """Load plain values and tensors only, even with weights_only=False: no code is executed."""
        return load(Path(path), map_location)


def load(path: Path, map_location: Any = "cpu") -> dict[str, Any]:
    """Load a checkpoint without executing code from it.

    Raises:
        UserError: it is not a checkpoint, or holds more than tensors and plain values.
    """
    try:
        with warnings.catch_warnings(action="ignore"):  # of pickles that torch did not write
            checkpoint = torch.load(path, map_location=map_location, weights_only=True)
    except DAMAGE as error:
        if _import_tensor_classes(str(error)):
            return load(path, map_location)
        # The rest of torch's text is advice to load what executes code.
        what = r"unsupported (?:global: )?(GLOBAL|operand|class) (\S+)"
        found = re.search(what, str(error), re.IGNORECASE)
        why = f"unsupported {found[1].lower()} {found[2]}" if found else "torch cannot read it"
        raise UserError(
            f"{path} holds more than tensors and plain values, or is damaged: {why}"
        ) from error
    if not isinstance(checkpoint, dict) or not isinstance(checkpoint.get("state_dict"), dict):
        raise UserError(f"{path} is not a checkpoint of a run: it has no state_dict")
    return checkpoint


def model_tensors(path: Path) -> dict[str, torch.Tensor]:
    """The tensors of a checkpoint's model by their names in it, without those of the task.

    Raises:
        UserError: as `load`.
    """
    saved: dict[str, torch.Tensor] = load(path)["state_dict"]
    return {k.removeprefix("model."): v for k, v in saved.items() if k.startswith("model.")}


def _import_tensor_classes(refusal: str) -> bool:
    """Import the package whose tensor class torch refused; whether it was one of `TENSOR_CLASSES`.

    The import declares the class safe. A package that only the file names is never imported.
    """
    for module in TENSOR_CLASSES:
        package = module.partition(".")[0]
        if module in refusal and module not in sys.modules and find_spec(package) is not None:
            import_module(module)
            return True
    return False


def finite(path: Path) -> bool:
    """Whether all weights and buffers of a checkpoint are finite."""
    tensors = load(path)["state_dict"].values()
    return all(bool(torch.isfinite(t).all()) for t in tensors if t.is_floating_point())


def write(checkpoint: dict[str, Any], path: Path) -> str:
    """Write a checkpoint to a file and sync it to disk; return the sha256 of its bytes."""
    with path.open("wb") as file:
        hashing = _Hashing(file)
        torch.save(checkpoint, cast(IO[bytes], hashing))
        if hashing.error:
            raise hashing.error
        file.flush()
        os.fsync(file.fileno())
    return hashing.digest.hexdigest()


class _Hashing:
    """A file that hashes the bytes while they are written, which saves reading the file again.

    It stores an `OSError` instead of raising it: torch's writer aborts the process on an exception.
    """

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self.digest = hashlib.sha256()
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
