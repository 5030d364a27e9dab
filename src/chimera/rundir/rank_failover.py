"""What another process of a run does when the first one, which writes for all, is gone."""

from __future__ import annotations

import time
from collections.abc import Collection

from chimera.rundir.directory import HEARTBEAT, RunDir
from chimera.rundir.safe_io import age_of, write_json

#: Seconds without a heartbeat after which the first process counts as gone.
SILENCE = 2.5 * HEARTBEAT


def first_is_gone(directory: RunDir, silence: float = SILENCE) -> bool:
    """Whether the process that writes the run's status has ended, or gives no sign of life.

    Call it only when the run cannot go on: it waits until one of the two is certain.

    Args:
        directory: of the run.
        silence: seconds without a heartbeat, on any host.
    """
    # Its last sign may be as young as this call, and the file system's clock is a little behind.
    end = time.monotonic() + 1.1 * silence + 0.2
    while directory.is_running() and age_of(directory.path / "status.json") < silence:
        if time.monotonic() > end:
            return False
        time.sleep(0.1)
    return directory.status().get("state") == "RUNNING"


def mark_failed(directory: RunDir, why: str) -> None:
    """Write FAILED in the name of the first process, which cannot any more."""
    status = {**directory.status(), "state": "FAILED", "why": why}
    write_json(directory.path / "status.json", status)


def mark_ended(directory: RunDir, processes: Collection[int], why: str) -> None:
    """Write FAILED if the status still says that one of these processes, which have ended, runs."""
    status = directory.status()
    if status.get("state") == "RUNNING" and status.get("pid") in processes:
        mark_failed(directory, why)
