"""Read arrays from an `.npz` that somebody else may have written: numbers, no pickled objects."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from chimera.errors import UserError


def read_arrays(file: Path, *needed: str) -> dict[str, npt.NDArray[Any]]:
    """The arrays of a file by name.

    Args:
        file: as numpy's `savez` writes it.
        needed: names that it has to hold.

    Raises:
        UserError: it holds something else.
    """
    try:
        with file.open("rb") as opened, zipfile.ZipFile(opened):
            opened.seek(0)
            with np.load(opened, allow_pickle=False) as stored:
                found = {name: stored[name] for name in stored.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        why = " ".join(str(error).split())[:200]
        raise UserError(f"{file} holds no arrays of numbers: {why}") from error
    missing = [name for name in needed if name not in found]
    if missing or not all(isinstance(array, np.ndarray) for array in found.values()):
        raise UserError(f"{file} lacks the arrays {', '.join(missing) or 'of numbers'}")
    return found
