"""Rows that start from no model, or no row: `init_from=`, `init_row=` of a table is not theirs.

A preset or a row says so by `init_from: scratch`. Some of SAIDL's rows fine-tune a body and others
are frozen random layers; one `init_from=` gives the whole table another body, and the random ones
stay what they are. So do rows that start from a model of Hugging Face, if `init_row=` gives other
data to the rows that their neighbours start from.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from chimera.config.choices import UNSET, Selection, init_from_of, select
from chimera.config.overrides import check_choices, is_choice
from chimera.config.rows_before import PREFIX
from chimera.config.tables import ROW
from chimera.errors import UserError
from chimera.paths import CONF

#: Value of `init_from` in such a preset or row; the run's own is null.
SCRATCH = "scratch"
_KEY = "init_from="
#: Overrides that some rows of a table have no use for, and why.
_NOT_FOR = {_KEY: "trained from scratch", PREFIX: "starts from no other row"}


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
    """Overrides of a table's jobs, without those about a start model that a row does not have.

    Args:
        batch: the overrides of each job.
        tell: name these rows on stderr.
    """
    kept, without = [], defaultdict[tuple[str, str], list[str]](list)
    for overrides in batch:
        rest = list(overrides)
        for key, why in _NOT_FOR.items():
            given = [text for text in rest if text.startswith(key)]
            if given and _has_no(key, rest):
                rest = [text for text in rest if text not in given]
                without[given[-1], why].append(_row(overrides))
        kept.append(rest)
    for (text, why), rows in without.items() if tell else ():
        _say(f"{text} is not for {', '.join(dict.fromkeys(rows))}: {why}")
    return kept


@cache
def _say(line: str) -> None:
    """Print a line on stderr, once in a process: a table is often planned several times."""
    print(line, file=sys.stderr)


def _has_no(key: str, overrides: Sequence[str]) -> bool:
    """Whether the run has no start model that the key could change, or no row as such."""
    parsed = check_choices(list(overrides))
    choices = [text for text, o in zip(overrides, parsed, strict=True) if is_choice(o)]
    chosen = select(tuple(choices), CONF)
    if key == _KEY:
        return init_from_of(chosen, choices) == SCRATCH
    settings = {o.key_or_group: o.value() for o in parsed}
    is_row = any("/" in choice.partition("=")[0] for choice in choices)
    return is_row and not (start_model(chosen, choices, settings) or "").startswith(ROW)


def _row(choices: Sequence[str]) -> str:
    """The row, or the preset, that the overrides choose."""
    rows = [text.partition("=")[2] for text in choices if "/" in text.partition("=")[0]]
    presets = [text for text in choices if text.startswith("preset=")]
    return (rows or presets or ["this preset"])[-1]
