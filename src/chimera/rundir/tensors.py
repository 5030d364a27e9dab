"""Read safetensors files and checkpoints of transformers that somebody else may have written.

Only safetensors are read, and config.json as data: no class that a file names is imported. Does not
import torch until tensors are read or written.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open

from chimera.errors import UserError
from chimera.safe_io import read_json, replacing

if TYPE_CHECKING:
    from torch import Tensor


def load_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a file by name.

    Raises:
        UserError: it is no safetensors file.
    """
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        why = " ".join(str(error).split())[:200]
        raise UserError(f"{path} cannot be read as safetensors: {why}") from error


def save_tensors(
    tensors: Mapping[str, Tensor], path: Path, metadata: dict[str, str] | None = None
) -> None:
    """Write tensors that share no memory, in a file of the usual mode."""
    from safetensors.torch import save_file

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


CONFIG = "config.json"
WEIGHTS = "model.safetensors"
ENDS = 2**16  # bytes of either end of a file that stand for it in an identity


def read_config(folder: Path) -> dict[str, Any]:
    """Contents of config.json.

    Raises:
        UserError: no such file, or not a mapping.
    """
    if not (folder / CONFIG).is_file():
        raise UserError(
            f"init_from=hf:{folder} is not a checkpoint folder: {CONFIG} is missing; download it"
            " first, as with hf download <owner/name> --local-dir <folder>"
        )
    return read_json(folder / CONFIG)


def files(folder: Path) -> list[Path]:
    """The checkpoint's safetensors files.

    Raises:
        UserError: there are none, or an index names files elsewhere.
    """
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    index = read_json(folder / f"{WEIGHTS}.index.json").get("weight_map")
    if not isinstance(index, dict) or not index:
        raise UserError(
            f"init_from=hf:{folder} has no {WEIGHTS}; other formats may hold programs: convert it"
            " with transformers, by save_pretrained"
        )
    named = sorted({str(name) for name in index.values()})
    for name in named:
        if not re.fullmatch(r"[\w-][\w.-]*\.safetensors", name) or not (folder / name).is_file():
            raise UserError(f"{folder / WEIGHTS}.index.json names {name!r}, which does not exist")
    return [folder / name for name in named]


def names(folder: Path) -> set[str]:
    """Names of all tensors, from the headers of the files.

    Raises:
        UserError: a file is no safetensors file.
    """
    found: set[str] = set()
    for file in files(folder):
        try:
            with safe_open(file, framework="numpy") as opened:
                found |= set(opened.keys())
        except (OSError, SafetensorError) as error:
            raise UserError(f"{file} cannot be read as safetensors") from error
    return found


def tensors(folder: Path) -> dict[str, Tensor]:
    """All tensors by name.

    Raises:
        UserError: a file is no safetensors file.
    """
    found: dict[str, Tensor] = {}
    for file in files(folder):
        found |= load_tensors(file)
    return found


def digest(folder: Path) -> str:
    """What stands for a checkpoint in identities: a hash of its configuration and of its files.

    Of a file of weights count name, size and both ends, the first of which has all shapes.
    """
    hashed = hashlib.sha256((folder / CONFIG).read_bytes())
    for file in files(folder):
        size = file.stat().st_size
        hashed.update(f"{file.name} {size}".encode())
        with file.open("rb") as opened:
            hashed.update(opened.read(ENDS))
            opened.seek(max(size - ENDS, 0))
            hashed.update(opened.read(ENDS))
    return hashed.hexdigest()[:8]
