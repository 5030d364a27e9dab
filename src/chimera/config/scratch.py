"""Rows whose model has random weights in the paper: `init_from=` of their table is not for them.

A preset or a row says so by `init_from: scratch`. Some of SAIDL's rows fine-tune a body and others
are frozen random layers; one `init_from=` gives the whole table another body, and the random ones
stay what they are.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from chimera.config.choices import UNSET, Selection, init_from_of, select
from chimera.config.overrides import check_choices, is_choice
from chimera.errors import UserError
from chimera.paths import CONF

#: Value of `init_from` in such a preset or row; the run's own is null.
SCRATCH = "scratch"
_KEY = "init_from="


def start_model(
    chosen: Selection, choices: Sequence[str], settings: Mapping[str, Any]
) -> str | None:
    """`init_from` of a run: the command line's, or that of its row, preset and scale.

    Args:
        chosen: options and files of the choices.
        choices: overrides that choose.
        settings: values by key of the command line.

    Raises:
        UserError: the command line names a model for a row that trains from scratch.
    """
    given, own = settings.get("init_from", UNSET), init_from_of(chosen, choices)
    if own != SCRATCH:
        return own if given is UNSET else given
    if given is UNSET or given is None:
        return None
    raise UserError(
        f"init_from={given}: {_row(choices)} trains a model from scratch, whose shape no other"
        " model has; leave init_from= out"
    )


def applicable(batch: Sequence[Sequence[str]], *, tell: bool = True) -> list[list[str]]:
    """Overrides of a table's jobs, without an `init_from=` for rows that train from scratch.

    Args:
        batch: the overrides of each job.
        tell: name these rows on stderr.
    """
    kept, without = [], []
    for overrides in batch:
        given = [text for text in overrides if text.startswith(_KEY)]
        rest = list(overrides)
        if given and _from_scratch(overrides):
            rest = [text for text in overrides if text not in given]
            without.append((given[-1], _row(overrides)))
        kept.append(rest)
    for model in dict.fromkeys(text for text, _ in without) if tell else ():
        rows = ", ".join(dict.fromkeys(row for text, row in without if text == model))
        _say(f"{model} is not for {rows}: trained from scratch")
    return kept


@cache
def _say(line: str) -> None:
    """Print a line on stderr, once in a process: a table is often planned several times."""
    print(line, file=sys.stderr)


def _from_scratch(overrides: Sequence[str]) -> bool:
    parsed = check_choices(list(overrides))
    choices = [text for text, o in zip(overrides, parsed, strict=True) if is_choice(o)]
    return init_from_of(select(tuple(choices), CONF), choices) == SCRATCH


def _row(choices: Sequence[str]) -> str:
    """The row, or the preset, that the overrides choose."""
    rows = [text.partition("=")[2] for text in choices if "/" in text.partition("=")[0]]
    presets = [text for text in choices if text.startswith("preset=")]
    return (rows or presets or ["this preset"])[-1]
