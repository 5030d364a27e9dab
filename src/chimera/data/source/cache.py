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
import re
import shutil
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from chimera.errors import UserError

log = logging.getLogger("chimera")

MANIFEST = "manifest.json"
_PATIENCE = 1.0  # seconds of waiting for another process before the log says so
_reads_only: ContextVar[bool] = ContextVar("reads_only", default=False)


class NotCached(Exception):  # noqa: N818 - an answer, not a failure
    """An entry is absent or damaged inside `reading_only`."""


@contextmanager
def reading_only() -> Iterator[None]:
    """Write nothing: let `entry` raise `NotCached` where it would build an entry."""
    before = _reads_only.set(True)
    try:
        yield
    finally:
        _reads_only.reset(before)


def reads_only() -> bool:
    """Whether this is inside `reading_only`."""
    return _reads_only.get()


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
        NotCached: inside `reading_only`, the entry is not there.
    """
    folder = root / kind / key[:32]
    facts = _read(folder)
    if facts is not None:
        return folder, facts
    if reads_only():
        raise NotCached(str(folder))
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
    except (PermissionError, FileNotFoundError, FileExistsError, NotADirectoryError) as error:
        if isinstance(error, FileNotFoundError) and folder.parent.is_dir():
            raise  # of `build`, which reads files
        raise UserError(
            f"data.cache_dir={root} cannot be written to ({error.strerror}); name another folder"
        ) from error
    return folder, facts


def hashes(folder: Path) -> dict[str, str]:
    """SHA-256 of each file of a complete entry, by name, as they were when it was built."""
    found: dict[str, str] = json.loads((folder / MANIFEST).read_text())["files"]
    return found


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
        stats = manifest["stats"]
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


def removable(root: Path, named: Collection[Path]) -> list[tuple[Path, int]]:
    """Entries, and what killed processes left of some, that can be built again; with their bytes.

    Only directories that this module names and writes are listed: a kind, a hash, a manifest.

    Args:
        root: directory of the cache.
        named: entries that runs read their test set from; they stay.
    """
    kept = {path.resolve() for path in named}
    found = []
    for kind in sorted(root.iterdir()) if root.is_dir() else ():
        if kind.is_symlink() or not kind.is_dir():
            continue
        for folder in sorted(kind.iterdir()):
            entry = re.fullmatch(r"[0-9a-f]{32}", folder.name) and (folder / MANIFEST).is_file()
            partial = re.fullmatch(r"\.[0-9a-f]{32}\.partial", folder.name)
            ours = not folder.is_symlink() and folder.is_dir() and (entry or partial)
            if ours and folder.resolve() not in kept:
                files = (file for file in folder.rglob("*") if not file.is_symlink())
                found.append((folder, sum(file.stat().st_size for file in files if file.is_file())))
    return found


def remove(folder: Path) -> bool:
    """Remove an entry that `removable` has listed; False if a process is building it."""
    name = folder.name.removeprefix(".").removesuffix(".partial")
    lock = FileLock(folder.with_name(f"{name}.lock"))
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return False
    try:
        shutil.rmtree(folder)
    finally:
        lock.release()
    return True
