"""What an export writes to: a new or empty folder, a new file, or that of an earlier export."""

from __future__ import annotations

import json
from pathlib import Path

from chimera.errors import UserError

#: All that `adapter=alone` writes, and a file in its folder.
ALONE = {"README.md", "adapter"}
ADAPTER = "adapter/adapter_model.safetensors"
#: First bytes of a file for llama.cpp.
MAGIC = b"GGUF"


def check_target(to: Path) -> None:
    """Refuse a folder that holds anything but an earlier export, which would be deleted.

    Raises:
        UserError: it is a file, or lies below one, or holds other files.
    """
    if not to.name:  # `to=` and `to=.`
        raise UserError(f"to={to} is the working directory; name a new or empty folder")
    nearest = next(folder for folder in (to, *to.absolute().parents) if folder.exists())
    if not nearest.is_dir():
        raise UserError(f"to={to}: {nearest} is a file; name a new or empty folder")
    names = {path.name for path in to.iterdir()} if to.is_dir() else set()
    alone = names == ALONE and (to / ADAPTER).is_file()
    if names and not alone and not _is_export(to / "config.json"):
        raise UserError(
            f"to={to} contains files that are not part of an export; name a new or empty folder"
        )


def _is_export(file: Path) -> bool:
    """Whether a configuration is that of an exported model."""
    try:
        about = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(about, dict) and "chimera" in about


def check_file(to: Path) -> None:
    """Refuse a path that is anything but a new file or an earlier GGUF file.

    Raises:
        UserError: it is a folder, or another file.
    """
    if to.is_dir():
        raise UserError(f"to={to} is a folder; name a new file that ends in .gguf")
    if to.exists():
        with to.open("rb") as file:
            if file.read(len(MAGIC)) != MAGIC:
                raise UserError(f"to={to} is another kind of file; name a new one")
