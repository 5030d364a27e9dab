"""Which run a student learns from (QDYT 4.2, TernaryBERT's row), and whether it is there yet.

`task.teacher` is a run's directory, or `row:<paper>/<table>/<row>`: that row's run with the words
of this one, hence of its scale and seed. What decides the student's numbers is `task.teacher_run`,
the teacher's identity, which the composition fills in. Free of torch.
"""

from __future__ import annotations

from typing import Any

from chimera.rundir.directory import RunDir, locate


def directory_of(config: dict[str, Any]) -> RunDir | None:
    """Where the teacher of a composed run is, or will be; None without a teacher."""
    task = config["task"]
    if not task.get("teacher"):
        return None
    return locate(task["teacher"], task["teacher_run"])
