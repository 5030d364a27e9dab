"""What another process of a run does when the first one, which writes for all, is gone."""

from __future__ import annotations

import time

from chimera.rundir.atomic import write_json
from chimera.rundir.directory import RunDir

#: Seconds within which an ended process of this host is seen to have ended.
PATIENCE = 2.0


def first_is_gone(directory: RunDir, patience: float = PATIENCE) -> bool:
    """Whether the process that writes the run's status has ended.

    On another host only its heartbeat tells, which is too slow: then it counts as there.

    Args:
        directory: of the run.
        patience: seconds to wait for its end.
    """
    end = time.monotonic() + patience
    while directory.is_running():
        if time.monotonic() > end:
            return False
        time.sleep(0.1)
    return directory.status().get("state") == "RUNNING"


def mark_failed(directory: RunDir, why: str) -> None:
    """Write FAILED in the name of the first process, which cannot any more."""
    status = {**directory.status(), "state": "FAILED", "why": why}
    write_json(directory.path / "status.json", status)
