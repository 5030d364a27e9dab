"""Write files atomically, completely or not at all; how old a file is."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from pathlib import Path

from chimera.errors import FULL, UserError


def write_atomic(path: Path, content: str | bytes) -> None:
    """Write a file; after a crash or on a full disk the old file is unchanged."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}")
    try:
        with temporary.open("wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: Path, value: object) -> None:
    """Write indented JSON atomically."""
    write_atomic(path, json.dumps(value, indent=2, ensure_ascii=False, default=str) + "\n")


def make_folder(folder: Path, *, of: Path, key: str = "run_dir") -> None:
    """Make a folder and those above it.

    Args:
        folder: to make.
        of: directory that was named on the command line.
        key: by which it was named.

    Raises:
        UserError: the system does not allow it.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        if error.errno in FULL:
            raise
        raise UserError(
            f"{key}={of} cannot be made ({error.strerror}); name a folder that you may write to"
        ) from error


def check_place(folder: Path, *, key: str = "run_dir") -> None:
    """Refuse a folder that is not there and cannot be made; nothing is left behind.

    Args:
        folder: that will be made.
        key: by which it was named.

    Raises:
        UserError: naming the file above it, or what the system says.
    """
    if folder.exists():
        return
    above = next(parent for parent in folder.absolute().parents if parent.exists())
    if not above.is_dir():
        raise UserError(f"{key}={folder}: {above} is a file; name another directory")
    disk = os.statvfs(above)
    usual = disk.f_blocks > 0 and not disk.f_flag & os.ST_RDONLY  # /proc has no blocks
    if usual and os.access(above, os.W_OK | os.X_OK):
        return
    # Only an attempt tells what the system says.
    probe = above / f".{folder.name}.probe-{os.getpid()}-{threading.get_ident()}"
    with contextlib.suppress(OSError):  # of a full disk a run speaks when it has begun
        make_folder(probe, of=folder, key=key)
        probe.rmdir()


def age_of(file: Path) -> float:
    """Seconds since a file was written, by the clock of its file system; infinite without the file.

    The clocks of two hosts may differ by hours, so a file written now tells the time there.
    """
    probe = file.with_name(f".{file.name}.now-{os.getpid()}-{threading.get_ident()}")
    try:
        written = file.stat().st_mtime
    except OSError:
        return float("inf")
    try:
        probe.write_bytes(b"")
        return probe.stat().st_mtime - written
    except OSError:  # a folder that may only be read
        return time.time() - written
    finally:
        with contextlib.suppress(OSError):
            probe.unlink(missing_ok=True)
