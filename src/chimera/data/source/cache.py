"""Cache of directories that are complete or absent, named by a hash of their inputs.

An entry is built in a temporary directory and renamed in one step, under a lock. So a crash leaves
no incomplete entry, and two processes do not build the same entry twice. `MANIFEST` holds the hash
of each file; an entry whose files do not match its manifest is built again.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from filelock import FileLock

from chimera.errors import UserError

log = logging.getLogger("chimera")

MANIFEST = "manifest.json"


def entry(
    root: Path, kind: str, key: str, build: Callable[[Path], dict[str, Any]]
) -> tuple[Path, dict[str, Any]]:
    """Read an entry of the cache; build it if it is absent or damaged.

    Args:
        root: directory of the cache.
        kind: of the entry; a subdirectory of the cache.
        key: hash of all inputs that determine the contents.
        build: fills an empty directory and returns facts as plain values.

    Returns:
        The entry's directory and the facts that `build` returned.

    Raises:
        UserError: the cache cannot be written to.
    """
    folder = root / kind / key[:32]
    facts = _read(folder)
    if facts is not None:
        return folder, facts
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(folder.with_suffix(".lock")):
            facts = _read(folder)  # another process may have built it before this one got the lock
            if facts is None:
                for unfinished in folder.parent.glob(f".{folder.name}.*"):  # by a killed process
                    shutil.rmtree(unfinished)
                if folder.exists():
                    log.warning("cache: %s is damaged; it is built again", folder)
                    shutil.rmtree(folder)
                facts = _write(folder, build)
    except PermissionError as error:
        raise UserError(
            f"data.cache_dir={root} cannot be written to ({error.strerror}); name another folder"
        ) from error
    return folder, facts


def _write(folder: Path, build: Callable[[Path], dict[str, Any]]) -> dict[str, Any]:
    temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        facts = build(temporary)
        files = {f.relative_to(temporary).as_posix(): _digest(f) for f in _files(temporary)}
        manifest = temporary / MANIFEST
        manifest.write_text(json.dumps({"files": files, "facts": facts}, indent=1))
        for file in [*_files(temporary), manifest]:
            with file.open("rb") as stream:
                os.fsync(stream.fileno())
        os.replace(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return facts


def _read(folder: Path) -> dict[str, Any] | None:
    """Facts of a complete entry; None if the entry is absent or damaged."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
        if all(_digest(folder / name) == digest for name, digest in manifest["files"].items()):
            return dict(manifest["facts"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return None


def _files(folder: Path) -> list[Path]:
    return sorted(f for f in folder.rglob("*") if f.is_file() and f.name != MANIFEST)


def _digest(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
