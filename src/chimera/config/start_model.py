"""Runs that another run needs first: the model that it fine-tunes, and its teacher.

`needs: <paper>/<table>/<row>` in the YAML of a row or preset names the row whose model it
fine-tunes. A sweep trains that model first, at the same scale. On the command line `init_from=`
names another model, and `needs.<key>=<value>` sets what that row has: `needs.data=text
needs.data.path=<file>`. `needs: none` is for a preset that trains from scratch: an `init_from=` of
its table is not for it.
`task.teacher=row:<paper>/<table>/<row>` is trained with the overrides of its student.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from chimera.config import init_from, tables
from chimera.config.choices import UNSET, Selection, scale_of, select
from chimera.config.groups import groups, is_part
from chimera.config.overrides import NEEDS, CommandLine, read
from chimera.config.schema import check_value
from chimera.errors import UserError
from chimera.program import command_name
from chimera.rundir.directory import RunDir, directory_of_teacher

#: Value of `needs` for rows that train from scratch.
NONE = "none"
_NEEDS = re.compile(r"\+*(needs\.)")
#: Prefixes of the overrides that a run shares with the row that it needs.
SHARED = ("scale=", "logger", "launcher", "trainer.progress=", "data.cache_dir=")
#: Prefixes of the overrides of a student that are not for its teacher.
STUDENT_ONLY = ("run_dir", "overwrite", "name", "table", "task.teacher", "task.distil", NEEDS)


class FirstRun(NamedTuple):
    """A run that has to be done first: what asks for it, where it is, how to train it."""

    setting: str
    role: str
    directory: RunDir
    command: str


def start_model(chosen: Selection, line: CommandLine) -> str | None:
    """`init_from` of a run: the command line's, or `row:` with what its row or preset needs.

    Args:
        chosen: options and files of the choices.
        line: of the run.

    Raises:
        UserError: the command line speaks of a start model that the run does not have.
    """
    needed = _needed(chosen, line.choices)
    given = line.settings.get("init_from", UNSET)
    found = given if given is not UNSET else needed and f"{tables.ROW}{needed}"
    if found is None and given is UNSET:
        found = chosen.value("init_from")
    check_value("init_from", found, str | None)
    if needed == NONE:
        if given not in (UNSET, None):
            rows = [option for group, option in chosen.options.items() if "/" in group]
            name = rows[-1] if rows else f"preset={chosen.options['preset']}"
            raise UserError(
                f"init_from={given}: {name} trains a model from scratch, whose shape no other model"
                " has; leave init_from= out"
            )
        found = None
    own = [key for key in line.settings if key.startswith(NEEDS)]
    if own and not str(found).startswith(tables.ROW):
        raise UserError(
            f"{own[0]}= is for the row that a run starts from, and this run starts from none; leave"
            " it out"
        )
    return found


def applicable(overrides: Sequence[str]) -> list[str]:
    """Overrides of a job without those about a start model that its row does not have."""
    given = [text for text in overrides if text.startswith("init_from=")]
    own = [text for text in overrides if _NEEDS.match(text)]
    line = read(overrides) if given or own else None
    if line is None or not any("/" in choice.partition("=")[0] for choice in line.choices):
        return list(overrides)
    needed = _needed(select(tuple(line.choices)), line.choices)
    row = str(line.settings["init_from"]).startswith(tables.ROW) if given else needed is not None
    unused = [*(given if needed == NONE else []), *(own if needed == NONE or not row else [])]
    return [text for text in overrides if text not in unused]


def row_overrides(row: str, overrides: Iterable[str]) -> list[str]:
    """Overrides that train the row named by `init_from`.

    Args:
        row: `row:<paper>/<table>/<row>`.
        overrides: of the run that starts from the row.

    Raises:
        UserError: no such row.
    """
    overrides = list(overrides)
    own = [text[: m.start(1)] + text[m.end(1) :] for text in overrides if (m := _NEEDS.match(text))]
    keys = {text.partition("=")[0] for text in own}
    shared = [o for o in overrides if o.startswith(SHARED) and o.partition("=")[0] not in keys]
    return [tables.row_override(row, "init_from"), *shared, *own]


def teacher_overrides(teacher: str, overrides: Iterable[str]) -> list[str]:
    """Overrides that train the teacher of a run.

    Args:
        teacher: `row:<paper>/<table>/<row>`.
        overrides: of the student.

    Raises:
        UserError: no such row.
    """
    chosen = tables.row_override(teacher, "task.teacher")
    shared = [chosen]
    for text in overrides:
        key = text.lstrip("+").partition("=")[0]
        of_table = key in groups() and not is_part(key)
        if not of_table and not key.startswith(STUDENT_ONLY):
            shared.append(text)
    return shared


def identities(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Identities of the runs that a composed run needs, done or not."""
    both = (config["task"].get("teacher_run"), config.get("init_run"))
    return tuple(identity for identity in both if identity)


def teacher_directory(config: Mapping[str, Any]) -> RunDir | None:
    """Where the teacher of a composed run is, or will be; None without a teacher."""
    task = config["task"]
    if not task.get("teacher"):
        return None
    return directory_of_teacher(task["teacher"], task["teacher_run"])


def _missing(config: Mapping[str, Any], overrides: Sequence[str]) -> Iterator[FirstRun]:
    teacher = teacher_directory(config)
    name = config["task"].get("teacher")
    if teacher is not None and teacher.status().get("state") != "DONE":
        command = "the command in its overrides.txt"
        if name.startswith(tables.ROW):
            command = f"{command_name('train')} {' '.join(teacher_overrides(name, overrides))}"
        yield FirstRun(f"task.teacher={name}", "teacher", teacher, command)
    if (start := init_from.pending(config)) is not None:
        row = config["init_from"]
        command = f"{command_name('train')} {' '.join(row_overrides(row, overrides))}"
        yield FirstRun(f"init_from={row}", "model to start from", start, command)


def wait_for_all(
    config: Mapping[str, Any], overrides: Sequence[str], *, every: float = 2.0
) -> None:
    """Return when every run that this one needs is done; wait for those that are being trained.

    Args:
        config: of the run.
        overrides: of the run.
        every: seconds between two looks.

    Raises:
        UserError: one is neither done nor being trained; the message says how to train it.
    """
    told = False
    while (first := next(_missing(config, overrides), None)) is not None:
        if not first.directory.is_running():
            raise UserError(f"{first.setting} is not trained yet; train it first: {first.command}")
        if not told:
            where = first.directory.path
            print(f"waiting for the {first.role} in {where}", file=sys.stderr, flush=True)
            told = True
        time.sleep(every)


def _needed(chosen: Selection, choices: Sequence[str]) -> str | None:
    """What the chosen row or preset needs at the chosen scale; None if `model=` is chosen."""
    if any(choice.startswith("model=") for choice in choices):
        return None
    needed = scale_of(chosen)["values"].get("needs", chosen.value("needs"))
    return None if needed is None else str(needed)
