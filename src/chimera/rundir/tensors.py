"""Read a safetensors file that somebody else may have written; write one that others may read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from chimera.errors import UserError


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
    with usual_mode(path):
        save_file(dict(tensors), path, metadata)


@contextmanager
def usual_mode(path: Path) -> Iterator[None]:
    """Give the file written inside the mode of any other: as the umask says, or as it was.

    safetensors writes beside the file and renames, so that its owner alone could read it, in a
    folder that a team shares.
    """
    new = not path.exists()
    path.touch()
    mode = path.stat().st_mode
    try:
        yield
    except BaseException:
        if new:
            path.unlink(missing_ok=True)
        raise
    path.chmod(mode)
