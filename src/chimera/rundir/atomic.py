"""Write files atomically: completely or not at all."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path


def write_atomic(path: Path, text: str) -> None:
    """Write a text file; after a crash or on a full disk the old file is unchanged."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: Path, value: object) -> None:
    """Write indented JSON atomically."""
    write_atomic(path, json.dumps(value, indent=2, ensure_ascii=False, default=str) + "\n")
