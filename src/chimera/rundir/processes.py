"""Processes of this host, told apart by number and start time."""

from __future__ import annotations

import subprocess
from pathlib import Path


def process_start(pid: int) -> str | None:
    """Start time of a process of this host, in the host's unit; None if the process has ended.

    It tells a process from a later one with the same number.
    """
    stat = Path(f"/proc/{pid}/stat")
    if Path("/proc/self/stat").exists():
        try:  # the second field, the name in brackets, may contain blanks and brackets
            state, *rest = stat.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            return None
        return None if state in "ZX" else rest[18]
    ps = subprocess.run(("ps", "-o", "lstart=", "-p", str(pid)), capture_output=True, text=True)
    return ps.stdout.strip() or None
