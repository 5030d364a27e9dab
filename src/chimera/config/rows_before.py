"""Command lines of the rows that a run needs first: its start model and its teacher.

`init_from=row:<paper>/<table>/<row>` is trained at the scale of the run that starts from it, on the
row's own data. `init_row={data:text,data.path:…}` gives that row other settings: the data of the
run are a task's, those of the row a language's. Does not import torch.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from chimera.config import tables
from chimera.config.notation import text
from chimera.config.overrides import check_choices
from chimera.errors import UserError

#: Prefixes of the overrides that the row named by `init_from` shares with the run.
SHARED = ("scale=", "logger", "launcher", "trainer.progress=", "data.cache_dir=")
#: Prefixes of the student's overrides that its teacher does not share.
STUDENT_ONLY = (
    "run_dir", "overwrite", "name", "table", "task.teacher", "task.distil", "init_row",
)  # fmt: skip
#: Key of the row's own settings, and as it begins an override.
ROW_SETTINGS = "init_row"
PREFIX = f"{ROW_SETTINGS}="


def row_overrides(row: str, overrides: Iterable[str]) -> list[str]:
    """Overrides that train the row named by `init_from`.

    Args:
        row: `row:<paper>/<table>/<row>`.
        overrides: of the run that starts from the row.

    Raises:
        UserError: no such row, or an `init_row=` without keys.
    """
    chosen = tables.row_override(row, "init_from")
    overrides = list(overrides)
    given = [word for word in overrides if word.startswith(PREFIX)]
    own = _settings(check_choices(given[-1:])[0].value()) if given else {}
    shared = [
        word for word in overrides if word.startswith(SHARED) and word.partition("=")[0] not in own
    ]
    return [chosen, *shared, *(f"{key}={_text(value)}" for key, value in own.items())]


def check_row_settings(start_model: str | None, settings: Mapping[str, Any]) -> None:
    """Check the `init_row=` of a run.

    Args:
        start_model: value of `init_from`, also that of the run's own row.
        settings: values by key of the command line.

    Raises:
        UserError: it is no mapping, or the run starts from no row.
    """
    own = _settings(settings.get(ROW_SETTINGS))
    if own and not (start_model or "").startswith(tables.ROW):
        raise UserError(
            f"{PREFIX} ({', '.join(own)}) is for the row that init_from=row:… names, and this run"
            " starts from none; leave it out"
        )


def _settings(value: object) -> dict[str, Any]:
    if value is None or isinstance(value, dict):
        return {str(key): item for key, item in (value or {}).items()}
    raise UserError(
        f"{PREFIX}{value} has no keys with values; write '{PREFIX}{{data:text,data.path:<file>}}'"
    )


def _text(value: object) -> str:
    """A value as an override takes it, without quotes where a choice or a path needs none."""
    plain = isinstance(value, str) and re.fullmatch(r"[\w./+-]+", value)
    return str(value) if plain else text(value)


def teacher_overrides(teacher: str, overrides: Iterable[str]) -> list[str]:
    """Overrides that train the teacher of a run.

    Args:
        teacher: `row:<paper>/<table>/<row>`.
        overrides: of the student.

    Raises:
        UserError: no such row.
    """
    chosen = tables.row_override(teacher, "task.teacher")
    papers = tables.papers()
    shared = [
        override
        for override in overrides
        if override.lstrip("+").partition("=")[0].partition("/")[0] not in papers
        and not override.lstrip("+").startswith(STUDENT_ONLY)
    ]
    return [chosen, *shared]
