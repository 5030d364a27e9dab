"""Runs that have to be done before a run can begin: its teacher, and the row that it starts from.

Free of torch.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from chimera.config import init_from as inherit
from chimera.config.compose import row_overrides, teacher_overrides
from chimera.config.tables import ROW
from chimera.errors import UserError
from chimera.rundir.directory import RunDir
from chimera.train import teacher


@dataclass(frozen=True)
class Need:
    """A run that is not done yet.

    Args:
        who: the key and value that ask for it.
        what: what it is to the run that needs it.
        directory: where it is, or will be.
        how: what starts it.
    """

    who: str
    what: str
    directory: RunDir
    how: str


def identities(config: dict[str, Any]) -> tuple[str, ...]:
    """Of the runs that a composed run needs, done or not."""
    found = [config["task"].get("teacher_run"), config.get("init_run")]
    return tuple(one for one in found if one)


def missing(config: dict[str, Any], words: list[str]) -> Iterator[Need]:
    """What a composed run needs and what is not done.

    Args:
        config: of the run.
        words: that start it.
    """
    taught = config["task"].get("teacher")
    directory = teacher.directory_of(config)
    if directory is not None and directory.status().get("state") != "DONE":
        how = "the command in its overrides.txt"
        if taught.startswith(ROW):
            how = f"python train.py {' '.join(teacher_overrides(taught, words))}"
        yield Need(f"task.teacher={taught}", "teacher", directory, how)
    before = inherit.pending(config)
    if before is not None:
        start = config["init_from"]
        how = f"python train.py {' '.join(row_overrides(start, words))}"
        yield Need(f"init_from={start}", "model to start from", before, how)


def await_all(config: dict[str, Any], words: list[str], *, every: float = 2.0) -> None:
    """Return when all that a run needs is trained; wait for what is being trained just now.

    Raises:
        UserError: it is not trained, nor is anybody at it; the message says how to train it.
    """
    told = False
    while (need := next(missing(config, words), None)) is not None:
        if not need.directory.alive():
            raise UserError(f"{need.who} is not trained yet; train it first: {need.how}")
        if not told:
            where = need.directory.path
            print(f"waiting for the {need.what} in {where}", file=sys.stderr, flush=True)
            told = True
        time.sleep(every)
