"""The jobs of a sweep: every combination of the values on the command line, and its checks."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
from collections.abc import Iterator, Sequence
from fnmatch import fnmatch

from hydra.core.override_parser.types import Glob, IntervalSweep, Override

from chimera.config.groups import groups
from chimera.errors import UserError
from chimera.program import SWEEP


def list_jobs(overrides: Sequence[str], parsed: Sequence[Override]) -> list[list[str]]:
    """Overrides of each job; `+<paper>=<table>` stands for all rows of the table.

    Args:
        overrides: of the sweep.
        parsed: the same, parsed.

    Raises:
        UserError: a range or a glob matches nothing.
    """
    choices = [_choices(text, override) for text, override in zip(overrides, parsed, strict=True)]
    return [list(job) for job in itertools.product(*choices)]


def _choices(text: str, override: Override) -> list[str]:
    table = f"{override.key_or_group}/{override.value()}"
    if override.is_add() and table in groups():
        return [f"+{table}={row}" for row in groups()[table]]
    if override.is_sweep_override():
        return [f"{override.get_key_element()}={value}" for value in values_of(override)]
    return [text]


def values_of(override: Override) -> list[str]:
    """The values of `a,b`, `choice(…)`, `range(…)` or `glob(…)`.

    Raises:
        UserError: there are none.
    """
    value = override.value()
    if isinstance(value, Glob):
        found = [
            name
            for name in groups().get(override.key_or_group, [])
            if any(fnmatch(name, pattern) for pattern in value.include)
            and not any(fnmatch(name, pattern) for pattern in value.exclude)
        ]
    else:
        found = list(override.sweep_string_iterator())
    if not found:
        raise UserError(f"{override.input_line} matches nothing, so there are no jobs; widen it")
    return found


def check_sweep(parsed: Sequence[Override], *, searched: bool = False) -> None:
    """Check that no override sets or varies a setting of the sweep itself.

    Args:
        parsed: the overrides.
        searched: whether the sweep is a search, which takes ranges without steps.

    Raises:
        UserError: an override does; the message names the override to use instead.
    """
    tables = {f"{override.key_or_group}/{override.value()}": override for override in parsed}
    for override in parsed:
        if table := tables.get(override.key_or_group):
            raise UserError(
                f"{override.input_line} chooses rows of a table, of which {table.input_line} takes"
                " all; leave one of them out"
            )
        if isinstance(override.value(), IntervalSweep) and not searched:
            raise UserError(
                f"{override.input_line} is a range to search; add search.trials=<number>, or list"
                " the values"
            )
        if override.key_or_group == "extend":
            raise UserError("extend=true goes on with one finished run; start it without -m")
        if override.key_or_group in ("workers", "launcher") and override.is_sweep_override():
            raise UserError(
                f"{override.key_or_group} cannot vary within a sweep; give it a single value"
            )


@contextlib.contextmanager
def sweep_variable(overrides: Sequence[str], parsed: Sequence[Override]) -> Iterator[None]:
    """Tell the jobs that are started inside of which sweep they are, and which keys it varies.

    Args:
        overrides: of the sweep; the same ones have the same name.
        parsed: the same, parsed.
    """
    digest = hashlib.sha256("\n".join(overrides).encode()).hexdigest()[:8]
    keys = [o.key_or_group for o in parsed if o.is_sweep_override() and o.key_or_group != "seed"]
    os.environ[SWEEP] = f"sweep-{digest}:{','.join(keys)}"
    try:
        yield
    finally:
        del os.environ[SWEEP]
