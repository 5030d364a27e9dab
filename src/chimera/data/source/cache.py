"""Cache of directories that are complete or absent, named by a hash of their inputs.

An entry is built in a temporary directory and renamed in one step, under a lock. So a crash leaves
no incomplete entry, and two processes do not build the same entry twice: the second waits. The
kernel releases the lock of a process that dies. Where the file system has no `flock`, `filelock`
uses the existence of the file, and takes over the lock of a dead process of the same machine.

`MANIFEST` holds size, time of change and hash of each file. A file is hashed again only if size or
time differ; an entry whose files do not match its manifest is built again.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from chimera.errors import UserError

log = logging.getLogger("chimera")

MANIFEST = "manifest.json"
_PATIENCE = 1.0  # seconds of waiting for another process before the log says so


def entry(
    root: Path,
    kind: str,
    key: str,
    build: Callable[[Path], dict[str, Any]],
    *,
    resume: bool = False,
) -> tuple[Path, dict[str, Any]]:
    """Read an entry of the cache; build it if it is absent or damaged.

    Args:
        root: directory of the cache.
        kind: of the entry; a subdirectory of the cache.
        key: hash of all inputs that determine the contents.
        build: fills an empty directory and returns facts as plain values.
        resume: keep the directory of an interrupted `build` and give it to the next one.

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
        with _locked(folder):
            facts = _read(folder)  # another process may have built it before this one got the lock
            if facts is None:
                partial = folder.parent / f".{folder.name}.partial"
                for unfinished in folder.parent.glob(f".{folder.name}.*"):  # by a killed process
                    if not (resume and unfinished == partial):
                        shutil.rmtree(unfinished)
                if folder.exists():
                    log.warning("cache: %s is damaged; it is built again", folder)
                    shutil.rmtree(folder)
                facts = _write(folder, partial, build, resume)
    except PermissionError as error:
        raise UserError(
            f"data.cache_dir={root} cannot be written to ({error.strerror}); name another folder"
        ) from error
    return folder, facts


def has(root: Path, kind: str, key: str) -> bool:
    """Whether an entry of the cache is complete."""
    return _read(root / kind / key[:32]) is not None


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    lock = FileLock(folder.with_suffix(".lock"))
    try:
        lock.acquire(timeout=_PATIENCE)
    except Timeout:
        log.info("cache: another process prepares %s; waiting for it", folder)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _write(
    folder: Path, partial: Path, build: Callable[[Path], dict[str, Any]], resume: bool
) -> dict[str, Any]:
    partial.mkdir(mode=0o700, exist_ok=resume)
    try:
        facts = build(partial)
    except BaseException:
        if not resume:
            shutil.rmtree(partial, ignore_errors=True)
        raise
    for file in _files(partial):
        _sync(file)
    files = _files(partial)
    manifest = {
        "files": {file.relative_to(partial).as_posix(): _digest(file) for file in files},
        "stats": {file.relative_to(partial).as_posix(): _stat(file) for file in files},
        "facts": facts,
    }
    (partial / MANIFEST).write_text(json.dumps(manifest, indent=1))
    _sync(partial / MANIFEST)
    os.replace(partial, folder)
    return facts


def _read(folder: Path) -> dict[str, Any] | None:
    """Facts of a complete entry; None if the entry is absent or damaged."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
        stats = manifest.get("stats", {})  # absent in entries of 0.1.0
        for name, digest in manifest["files"].items():
            file = folder / name
            if _stat(file) != stats.get(name) and _digest(file) != digest:
                return None
        return dict(manifest["facts"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _stat(file: Path) -> list[int]:
    status = file.stat()
    return [status.st_size, status.st_mtime_ns]


def _sync(file: Path) -> None:
    with file.open("rb") as stream:
        os.fsync(stream.fileno())


def _files(folder: Path) -> list[Path]:
    return sorted(f for f in folder.rglob("*") if f.is_file() and f.name != MANIFEST)


def _digest(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
