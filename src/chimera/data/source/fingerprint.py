"""Hashes of settings and files; the cache names its entries by them."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from chimera.data.source.cache import reads_only

#: A file that changed so shortly before its hash was noted may change again within the same time of
#: change: file systems count it in steps of up to two seconds (FAT).
_SETTLED_NS = 2_000_000_000


def fingerprint_of(*parts: object) -> str:
    """Hash plain values to hexadecimal digits."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def file_fingerprint(file: Path, whole: int = 1 << 28) -> str:
    """Hash a file's contents; of a file above `whole` bytes: its ends, size and time of change."""
    with file.open("rb") as stream:
        status = file.stat()
        if status.st_size <= whole:
            return hashlib.file_digest(stream, "sha256").hexdigest()
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
        status = file.stat()
        stamp = [status.st_size, status.st_mtime_ns]
        known = noted.get(path, [])
        if known[:2] == stamp:
            found[path] = known
        else:
            settled = time.time_ns() - status.st_mtime_ns > _SETTLED_NS
            found[path] = [*(stamp if settled else (None, None)), file_fingerprint(file)]
    if found != noted and not reads_only():
        with suppress(OSError):
            _write(notes, json.dumps(found))
    return [str(found[path][2]) for path in paths]


def _write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=file.parent, prefix=".")
    with os.fdopen(handle, "w") as stream:
        stream.write(text)
    os.replace(temporary, file)
