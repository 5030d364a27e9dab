"""Check the overrides of a sweep, and find those that all jobs share and those of the first job."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator, Sequence
from fnmatch import fnmatch

from hydra.core.override_parser.types import Glob, IntervalSweep, Override

from chimera.config.groups import groups
from chimera.config.migration_hints import is_hydra
from chimera.config.start_model import applicable
from chimera.errors import UserError
from chimera.program import SWEEP


@contextlib.contextmanager
def named(overrides: Sequence[str], parsed: Sequence[Override]) -> Iterator[None]:
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


def check_sweep(parsed: Sequence[Override], *, searched: bool = False) -> None:
    """Check that no override sets or varies a setting of the sweep itself.

    Args:
        parsed: the overrides.
        searched: whether the sweep is a search, which takes ranges without steps.

    Raises:
        UserError: an override does; the message names the override to use instead.
    """
    searched |= any(override.key_or_group == "hydra/sweeper" for override in parsed)
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


def shared(overrides: Sequence[str], parsed: Sequence[Override]) -> list[str]:
    """Overrides `key=value` that all jobs have and that Hydra must not see.

    Hydra checks overrides against a configuration without the rows, which may not have these keys.
    """
    return [
        text for text, override in zip(overrides, parsed, strict=True) if _is_single_value(override)
    ]


def first_job(overrides: Sequence[str], parsed: Sequence[Override]) -> list[str]:
    """Overrides of the first job, in the order of `Batches`: rows, Hydra's, shared overrides.

    Raises:
        UserError: a range or a glob matches nothing.
    """
    rows, swept = [], []
    for text, override in zip(overrides, parsed, strict=True):
        name, value = override.key_or_group, override.value()
        if is_hydra(name) or _is_single_value(override):
            continue
        if override.is_add() and "/" not in name and f"{name}/{value}" in groups():
            rows.append(f"+{name}/{value}={groups()[f'{name}/{value}'][0]}")
        if override.is_sweep_override():
            text = f"{override.get_key_element()}={_first_value(override)}"
        swept.append(text)
    return applicable([*rows, *swept, *shared(overrides, parsed)])


def _is_single_value(override: Override) -> bool:
    """Whether the override is `key=value` or `~key`: no choice, no sweep, no setting of Hydra."""
    name = override.key_or_group
    prefixed = (override.is_add(), override.is_force_add())
    if any(prefixed) or override.is_sweep_override() or name in groups():
        return False
    return not is_hydra(name)


def _first_value(override: Override) -> str:
    value, name = override.value(), override.key_or_group
    if isinstance(value, IntervalSweep):
        return str(value.start)
    if isinstance(value, Glob):
        options = [o for o in groups().get(name, []) if any(fnmatch(o, p) for p in value.include)]
    else:
        options = [str(v) for v in override.sweep_string_iterator()]
    if not options:
        raise UserError(f"the sweep has no jobs: {override.input_line} matches nothing; widen it")
    return options[0]
