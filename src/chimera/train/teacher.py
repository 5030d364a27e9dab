"""Which run a student learns from (QDYT 4.2, TernaryBERT's row), and whether it is there yet.

`task.teacher` is a run's directory, or `row:<paper>/<table>/<row>`: that row's run with the words
of this one, hence of its scale and seed. What decides the student's numbers is `task.teacher_run`,
the teacher's identity, which the composition fills in. Free of torch.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from chimera.rundir.directory import RunDir, locate
from chimera.rundir.identity import identity

#: Words about where a run goes, or about the student alone.
NOT_THE_TEACHERS = ("run_dir", "overwrite", "name", "table", "task.teacher", "task.distil")


def words_of(teacher: str, words: list[str]) -> list[str]:
    """The command line that trains the teacher of a run that `words` start.

    Raises:
        UserError: no such row.
    """
    from chimera.config.tables import row_word
    from chimera.paths import EXPERIMENTS

    chosen = row_word(teacher, "task.teacher")
    papers = {path.name for path in EXPERIMENTS.iterdir()}
    shared = [
        word
        for word in words
        if word.lstrip("+").partition("=")[0].partition("/")[0] not in papers
        and not word.lstrip("+").startswith(NOT_THE_TEACHERS)
    ]
    return [chosen, *shared]


def identity_of(teacher: str, words: list[str]) -> str:
    """The teacher's identity, for a run that `words` start.

    Raises:
        UserError: no such row, or a directory that is no run's.
    """
    if not teacher.startswith("row:"):
        return identity(RunDir(Path(teacher)).config())
    from chimera.config.compose import compose, plain

    return identity(plain(compose(words_of(teacher, words))))


def directory_of(config: dict[str, Any]) -> RunDir | None:
    """Where the teacher of a composed run is, or will be; None without a teacher."""
    task = config["task"]
    if not task.get("teacher"):
        return None
    return locate(task["teacher"], task["teacher_run"])
