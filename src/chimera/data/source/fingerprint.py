"""Hashes of settings and files; the cache names its entries by them."""

from __future__ import annotations

import hashlib
from pathlib import Path


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
