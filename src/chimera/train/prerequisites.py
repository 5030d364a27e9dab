"""Train prerequisites first: the distillation teacher and the row named by `init_from`.

`task.teacher` is a run's directory, or `row:<paper>/<table>/<row>`: that row's run with the
overrides of this one, hence of its scale and seed. `task.teacher_run` and `init_run` are the
identities, which the composition fills in. Does not import torch.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from chimera.config import init_from
from chimera.config.rows_before import row_overrides, teacher_overrides
from chimera.config.tables import ROW
from chimera.errors import UserError
from chimera.program import spelt
from chimera.rundir.directory import RunDir, directory_of_teacher


@dataclass(frozen=True)
class Prerequisite:
    """A run that has to be done before another one can begin.

    Args:
        setting: key and value that ask for it.
        role: what it is to the run that needs it.
        directory: where it is, or will be.
        command: trains it.
    """

    setting: str
    role: str
    directory: RunDir
    command: str


def identities(config: dict[str, Any]) -> tuple[str, ...]:
    """Identities of the runs that a composed run needs, done or not."""
    both = (config["task"].get("teacher_run"), config.get("init_run"))
    return tuple(identity for identity in both if identity)


def teacher_directory(config: dict[str, Any]) -> RunDir | None:
    """Where the teacher of a composed run is, or will be; None without a teacher."""
    task = config["task"]
    return (
        directory_of_teacher(task["teacher"], task["teacher_run"]) if task.get("teacher") else None
    )


def missing(config: dict[str, Any], overrides: list[str]) -> Iterator[Prerequisite]:
    """The prerequisites of a composed run that are not done.

    Args:
        config: of the run.
        overrides: of the run.
    """
    teacher, name = teacher_directory(config), config["task"].get("teacher")
    if teacher is not None and teacher.status().get("state") != "DONE":
        command = "the command in its overrides.txt"
        if name.startswith(ROW):
            command = f"{spelt('train')} {' '.join(teacher_overrides(name, overrides))}"
        yield Prerequisite(f"task.teacher={name}", "teacher", teacher, command)
    start, row = init_from.pending(config), config["init_from"]
    if start is not None:
        command = f"{spelt('train')} {' '.join(row_overrides(row, overrides))}"
        yield Prerequisite(f"init_from={row}", "model to start from", start, command)


def wait_for_all(config: dict[str, Any], overrides: list[str], *, every: float = 2.0) -> None:
    """Return when every prerequisite is done; wait for those that are being trained.

    Args:
        config: of the run.
        overrides: of the run.
        every: seconds between two looks.

    Raises:
        UserError: one is neither done nor being trained; the message says how to train it.
    """
    told = False
    while (first := next(missing(config, overrides), None)) is not None:
        if not first.directory.is_running():
            raise UserError(f"{first.setting} is not trained yet; train it first: {first.command}")
        if not told:
            where = first.directory.path
            print(f"waiting for the {first.role} in {where}", file=sys.stderr, flush=True)
            told = True
        time.sleep(every)
