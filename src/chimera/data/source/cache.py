"""Cache entries that are whole or not there at all: directories named by what they were made from.

An entry is built beside its place and moved there in one step, under a lock, so that a crash leaves
none half made and two processes do not make it twice. `MANIFEST` holds the hash of every file;
an entry that no longer agrees with it is made anew.
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
    """The directory of an entry and the facts that were noted when it was built.

    Args:
        root: the cache.
        kind: of entry; a directory in the cache.
        key: hash of all that decides the contents.
        build: fills an empty directory and returns facts as plain values; called if there is no
            such entry or it is damaged.

    Raises:
        UserError: the cache cannot be written to.
    """
    place = root / kind / key[:32]
    facts = _read(place)
    if facts is not None:
        return place, facts
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(place.with_suffix(".lock")):
            facts = _read(place)  # another process may have made it while we waited
            if facts is None:
                for left_behind in place.parent.glob(f".{place.name}.*"):  # by a killed process
                    shutil.rmtree(left_behind)
                if place.exists():
                    log.warning("cache: %s is damaged and made anew", place)
                    shutil.rmtree(place)
                facts = _write(place, build)
    except PermissionError as error:
        raise UserError(f"data.cache_dir={root} cannot be written to ({error.strerror})") from error
    return place, facts


def _write(place: Path, build: Callable[[Path], dict[str, Any]]) -> dict[str, Any]:
    beside = Path(tempfile.mkdtemp(prefix=f".{place.name}.", dir=place.parent))
    try:
        facts = build(beside)
        files = {f.relative_to(beside).as_posix(): _digest(f) for f in _files(beside)}
        manifest = beside / MANIFEST
        manifest.write_text(json.dumps({"files": files, "facts": facts}, indent=1))
        for file in [*_files(beside), manifest]:
            with file.open("rb") as stream:
                os.fsync(stream.fileno())
        os.replace(beside, place)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return facts


def _read(place: Path) -> dict[str, Any] | None:
    """Facts of an entry that is whole, else None."""
    try:
        manifest = json.loads((place / MANIFEST).read_text())
        if all(_digest(place / name) == digest for name, digest in manifest["files"].items()):
            return dict(manifest["facts"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return None


def _files(folder: Path) -> list[Path]:
    return sorted(f for f in folder.rglob("*") if f.is_file() and f.name != MANIFEST)


def _digest(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
