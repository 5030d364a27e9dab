"""Read a safetensors file that somebody else may have written; write one that others may read."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from chimera.errors import UserError
from chimera.rundir.safe_io import replacing


def load_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a file by name.

    Raises:
        UserError: it is no safetensors file.
    """
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        why = " ".join(str(error).split())[:200]
        raise UserError(f"{path} cannot be read as safetensors: {why}") from error


def save_tensors(
    tensors: Mapping[str, Tensor], path: Path, metadata: dict[str, str] | None = None
) -> None:
    """Write tensors that share no memory, in a file of the usual mode."""
    with usual_mode(path) as new:
        save_file(dict(tensors), new, metadata)


@contextmanager
def usual_mode(path: Path) -> Iterator[Path]:
    """Yield a name to write a safetensors file to; it replaces `path` with the mode of any file.

    The mode is as the umask says, or as it was: safetensors would let the owner alone read a file
    in a folder that a team shares.

    Raises:
        OSError: the system's, which safetensors puts into words, such as that of a full disk.
    """
    with replacing(path) as new:
        new.touch()
        mode = (path if path.exists() else new).stat().st_mode
        try:
            yield new
        except SafetensorError as error:
            if found := re.search(r"Os \{ code: (\d+)", str(error)):
                number = int(found[1])
                raise OSError(number, os.strerror(number), str(path)) from error
            raise
        new.chmod(mode)
