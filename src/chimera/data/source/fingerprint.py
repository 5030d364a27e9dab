"""Hashes of settings and files, under which the cache keeps what was made from them."""

from __future__ import annotations

import hashlib
from pathlib import Path


def fingerprint_of(*parts: object) -> str:
    """Hexadecimal hash of a sequence of plain values."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def file_fingerprint(file: Path, whole: int = 1 << 28) -> str:
    """Hash of a file's contents; above `whole` bytes of its ends, size and time of change."""
    with file.open("rb") as stream:
        status = file.stat()
        if status.st_size <= whole:
            return hashlib.file_digest(stream, "sha256").hexdigest()
        head = stream.read(1 << 16)
        stream.seek(-(1 << 16), 2)
        return fingerprint_of(head, stream.read(), status.st_size, status.st_mtime_ns)
