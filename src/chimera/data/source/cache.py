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
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from chimera.errors import UserError

log = logging.getLogger("chimera")

MANIFEST = "manifest.json"
_PATIENCE = 1.0  # seconds of waiting for another process before the log says so
#: A file that changed so shortly before its hash was noted may change again within the same time of
#: change: file systems count it in steps of up to two seconds (FAT).
_SETTLED_NS = 2_000_000_000
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
    if _reads_only.get():
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


def write_whole(file: Path, text: str) -> None:
    """Write a file that is whole or absent, also if the process or the machine stops."""
    file.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=file.parent, prefix=".")
    with os.fdopen(handle, "w") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(handle)
    os.replace(temporary, file)


def sha256_of(file: Path) -> str:
    """Hash of a file's contents."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


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
    files = {
        f.relative_to(partial).as_posix(): f for f in sorted(partial.rglob("*")) if f.is_file()
    }
    for file in files.values():
        with file.open("rb") as stream:
            os.fsync(stream.fileno())
    manifest = {
        "files": {name: sha256_of(file) for name, file in files.items()},
        "stats": {name: _stat(file) for name, file in files.items()},
        "facts": facts,
    }
    write_whole(partial / MANIFEST, json.dumps(manifest, indent=1))
    os.replace(partial, folder)
    return facts


def _read(folder: Path) -> dict[str, Any] | None:
    """Facts of a complete entry; None if the entry is absent or damaged."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
        stats = manifest["stats"]
        for name, digest in manifest["files"].items():
            file = folder / name
            if _stat(file) != stats.get(name) and sha256_of(file) != digest:
                return None
        return dict(manifest["facts"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _stat(file: Path) -> list[int]:
    status = file.stat()
    return [status.st_size, status.st_mtime_ns]


def removable(root: Path, named: Collection[Path]) -> list[tuple[Path, int]]:
    """Entries, and what killed processes left of some, that can be built again; with their bytes.

    Only directories that this module names and writes are listed: a kind, a hash, a manifest.

    Args:
        root: directory of the cache.
        named: entries that runs read their test set from; they stay.
    """
    kept = {path.resolve() for path in named}
    found = []
    for folder in sorted(root.glob("*/*")):
        complete = re.fullmatch(r"[0-9a-f]{32}", folder.name) and (folder / MANIFEST).is_file()
        partial = re.fullmatch(r"\.[0-9a-f]{32}\.partial", folder.name)
        links = folder.is_symlink() or folder.parent.is_symlink()
        ours = folder.is_dir() and not links and (complete or partial)
        if ours and folder.resolve() not in kept:
            files = (file for file in folder.rglob("*") if not file.is_symlink())
            found.append((folder, sum(file.stat().st_size for file in files if file.is_file())))
    return found


def remove(folder: Path) -> bool:
    """Remove an entry that `removable` has listed; False if a process is building it."""
    name = folder.name.removeprefix(".").removesuffix(".partial")
    try:
        with FileLock(folder.with_name(f"{name}.lock"), timeout=0):
            shutil.rmtree(folder)
    except Timeout:
        return False
    return True


def fingerprint_of(*parts: object) -> str:
    """Hash plain values to hexadecimal digits."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def file_fingerprint(file: Path, whole: int = 1 << 28) -> str:
    """Hash a file's contents; of a file above `whole` bytes: its ends, size and time of change."""
    status = file.stat()
    if status.st_size <= whole:
        return sha256_of(file)
    with file.open("rb") as stream:
        head = stream.read(1 << 16)
        stream.seek(-(1 << 16), 2)
        return fingerprint_of(head, stream.read(), status.st_size, status.st_mtime_ns)


def file_fingerprints(files: Sequence[Path], cache: Path) -> list[str]:
    """`file_fingerprint` of each file; one of unchanged size and time of change is not read again.

    Args:
        files: whose hashes are noted together.
        cache: directory of the cache; one that cannot be written to only costs time.
    """
    paths = [str(file.resolve()) for file in files]
    notes = cache / "fingerprints" / f"{fingerprint_of(paths)[:32]}.json"
    noted: dict[str, list[object]] = {}
    with suppress(OSError, ValueError):
        noted = json.loads(notes.read_text())
    found: dict[str, list[object]] = {}
    for path, file in zip(paths, files, strict=True):
        stamp = _stat(file)
        known = noted.get(path, [])
        if known[:2] == stamp:
            found[path] = known
        else:
            settled = time.time_ns() - stamp[1] > _SETTLED_NS
            found[path] = [*(stamp if settled else (None, None)), file_fingerprint(file)]
    if found != noted and not _reads_only.get():
        with suppress(OSError):
            write_whole(notes, json.dumps(found))
    return [str(found[path][2]) for path in paths]
