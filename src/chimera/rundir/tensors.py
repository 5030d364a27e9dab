"""Read a safetensors file that somebody else may have written."""

from __future__ import annotations

from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file
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
