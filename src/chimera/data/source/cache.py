"""Cache of directories that are complete or absent, named by a hash of their inputs.

An entry is built in a temporary directory and renamed in one step, under a lock. So a crash leaves
no incomplete entry, and two processes do not build the same entry twice: the second waits. The
kernel releases the lock of a process that dies. Where the file system has no `flock`, `filelock`
uses the existence of the file, and takes over the lock of a dead process of the same machine.

`MANIFEST` holds size, time of change and hash of each file. Small files are hashed at each use,
others if size or time differ and by `damaged`; an entry whose files do not match its manifest is
built again. Entries have the modes of the process's umask, so that users can share a cache.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import shutil
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from chimera.errors import FULL, UnavailableError, UserError
from chimera.safe_io import sha256_of, write_atomic

log = logging.getLogger("chimera")

MANIFEST = "manifest.json"
_SMALL = 1 << 24  # bytes of a file that is hashed at each use
_PATIENCE = 1.0  # seconds of waiting for another process before the log says so
#: A file that changed so shortly before its hash was noted may change again within the same time of
#: change: file systems count it in steps of up to two seconds (FAT).
_SETTLED_NS = 2_000_000_000
#: Size and time of change of a file, unless it may change within that time, and its hash.
_Noted = tuple[int | None, int | None, str]


@dataclass(frozen=True)
class _Manifest:
    """What is noted of an entry: hash, and size and time of change, of each file, and facts."""

    files: dict[str, str]
    stats: dict[str, tuple[int, int]]
    facts: dict[str, Any]


def entry(
    root: Path,
    kind: str,
    key: str,
    build: Callable[[Path], dict[str, Any]],
    *,
    resume: bool = False,
    check: Callable[[Path, dict[str, Any]], object] = lambda folder, facts: True,
) -> tuple[Path, dict[str, Any]]:
    """Read an entry of the cache; build it if it is absent or damaged.

    Args:
        root: directory of the cache.
        kind: of the entry; a subdirectory of the cache.
        key: hash of all inputs that determine the contents.
        build: fills an empty directory and returns facts as plain values.
        resume: keep the directory of a `build` that was interrupted, and give it to the next one;
            what refused data left is removed.
        check: whether a folder holds what its facts say; one that does not is built again.

    Returns:
        The entry's directory and the facts that `build` returned.

    Raises:
        UserError: the cache cannot be written to, or the entry cannot be read.
    """
    folder = root / kind / key[:32]
    facts = _read(folder, check)
    if facts is not None:
        return folder, facts
    with ExitStack() as stack:
        with _writing(root):
            folder.parent.mkdir(parents=True, exist_ok=True)
            stack.enter_context(_locked(folder))
        facts = _read(folder, check)  # another process may have built it before the lock
        if facts is None:
            partial = folder.parent / f".{folder.name}.partial"
            with _writing(root):
                for unfinished in folder.parent.glob(f".{folder.name}.*"):  # by a killed process
                    if not (resume and unfinished == partial):
                        shutil.rmtree(unfinished)
                if folder.exists():
                    log.warning("cache: %s is damaged; it is built again", folder)
                    shutil.rmtree(folder)
                partial.mkdir(exist_ok=resume)
            try:
                facts = build(partial)
            except BaseException as error:
                refused = isinstance(error, UserError) and not isinstance(error, UnavailableError)
                if refused or not resume:
                    shutil.rmtree(partial, ignore_errors=True)
                raise
            with _writing(root):
                _publish(partial, folder, facts)
    return folder, facts


@contextmanager
def _writing(root: Path) -> Iterator[None]:
    """Say in one line why the cache cannot be written to; a full disk speaks for itself.

    Raises:
        UserError: with the reason of the system.
    """
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            raise
        raise UserError(
            f"data.cache_dir={root} cannot be written to ({error.strerror}); name another folder"
        ) from error


def hashes(folder: Path) -> dict[str, str]:
    """SHA-256 of each file of a complete entry, by name, as they were when it was built."""
    manifest: _Manifest | None = read_note(folder / MANIFEST, _Manifest)
    if manifest is None:
        raise UserError(f"{folder} was changed while it was used; start again")
    return manifest.files


def has(root: Path, kind: str, key: str) -> bool:
    """Whether an entry of the cache is complete."""
    return _read(root / kind / key[:32]) is not None


def read_note(file: Path, kind: Any) -> Any:
    """The value of a small JSON file of the cache; None if it is absent, torn or of another type.

    Args:
        file: to read.
        kind: type of its value.
    """
    from pydantic import TypeAdapter

    try:
        return TypeAdapter(kind).validate_json(file.read_bytes(), strict=True)
    except PermissionError as error:
        raise UserError(
            f"{file.parent} is another user's and closed to you; let its owner say"
            f" chmod -R a+rX {file.parent}, or name another data.cache_dir"
        ) from error
    except (OSError, ValueError):
        return None


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    lock = FileLock(folder.with_suffix(".lock"), mode=0o666)  # each user may lock
    try:
        lock.acquire(timeout=_PATIENCE)
    except Timeout:
        log.info("cache: another process prepares %s; waiting for it", folder)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _publish(partial: Path, folder: Path, facts: dict[str, Any]) -> None:
    files = {
        f.relative_to(partial).as_posix(): f for f in sorted(partial.rglob("*")) if f.is_file()
    }
    for file in files.values():
        with file.open("rb") as stream:
            os.fsync(stream.fileno())
    manifest = _Manifest(
        {name: sha256_of(file) for name, file in files.items()},
        {name: _stat(file) for name, file in files.items()},
        facts,
    )
    write_atomic(partial / MANIFEST, json.dumps(asdict(manifest), indent=1))
    os.replace(partial, folder)


def _read(
    folder: Path,
    check: Callable[[Path, dict[str, Any]], object] = lambda folder, facts: True,
    *,
    everything: bool = False,
) -> dict[str, Any] | None:
    """Facts of a complete entry; None if it is absent or damaged, as far as is looked at."""
    manifest: _Manifest | None = read_note(folder / MANIFEST, _Manifest)
    if manifest is None:
        return None
    try:
        for name, digest in manifest.files.items():
            stat = _stat(folder / name)
            known = stat == manifest.stats.get(name) and stat[0] > _SMALL
            if (everything or not known) and sha256_of(folder / name) != digest:
                return None
        return manifest.facts if check(folder, manifest.facts) else None
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None


def damaged(root: Path) -> list[Path]:
    """Entries of the cache whose files are not those that were written; all files are read."""
    folders = sorted(file.parent for file in root.glob(f"*/*/{MANIFEST}"))
    return [folder for folder in folders if _read(folder, everything=True) is None]


def _stat(file: Path) -> tuple[int, int]:
    status = file.stat()
    return status.st_size, status.st_mtime_ns


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
    noted: dict[str, _Noted] = read_note(notes, dict[str, _Noted]) or {}
    found: dict[str, _Noted] = {}
    for path, file in zip(paths, files, strict=True):
        stamp = _stat(file)
        known = noted.get(path)
        if known is not None and known[:2] == stamp:
            found[path] = known
        else:
            settled = time.time_ns() - stamp[1] > _SETTLED_NS
            found[path] = (*(stamp if settled else (None, None)), file_fingerprint(file))
    if found != noted:
        with suppress(OSError):
            notes.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(notes, json.dumps(found))
    return [found[path][2] for path in paths]
