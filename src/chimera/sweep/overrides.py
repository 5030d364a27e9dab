"""The overrides of a sweep: which are allowed, which all jobs share, what the first job has."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatch

from hydra.core.override_parser.types import Glob, IntervalSweep, Override

from chimera.config.groups import groups
from chimera.errors import UserError


def refuse(parsed: Sequence[Override]) -> None:
    """Reject what a sweep sets itself.

    Raises:
        UserError: naming what to write instead.
    """
    for override in parsed:
        if override.key_or_group == "hydra/launcher":
            raise UserError(
                "hydra/launcher is ours in a sweep; choose launcher="
                + " or launcher=".join(groups()["launcher"])
            )
        if override.key_or_group == "hydra.sweeper.max_batch_size":
            raise UserError("hydra.sweeper.max_batch_size: workers= says how many run at a time")
        if override.key_or_group in ("workers", "launcher") and override.is_sweep_override():
            raise UserError(f"{override.key_or_group} is one for the whole sweep")


def shared(overrides: Sequence[str], parsed: Sequence[Override]) -> list[str]:
    """Overrides `key=value` of all jobs, which Hydra must not see.

    Hydra would check them against a configuration without the rows, which may lack such keys.
    """
    return [text for text, of in zip(overrides, parsed, strict=True) if _is_value(of)]


def first_job(overrides: Sequence[str], parsed: Sequence[Override]) -> list[str]:
    """The overrides of the first job, in the order of `Batches`: rows, Hydra's, shared ones.

    Raises:
        UserError: a range or a glob matches nothing.
    """
    rows, others = [], []
    for text, override in zip(overrides, parsed, strict=True):
        name, value = override.key_or_group, override.value()
        if _is_hydra(name) or _is_value(override):
            continue
        if override.is_add() and "/" not in name and f"{name}/{value}" in groups():
            rows.append(f"+{name}/{value}={groups()[f'{name}/{value}'][0]}")
        if override.is_sweep_override():
            text = f"{override.get_key_element()}={_first_value(override)}"
        others.append(text)
    return [*rows, *others, *shared(overrides, parsed)]


def _is_hydra(name: str) -> bool:
    return name.partition(".")[0].partition("/")[0] == "hydra"


def _is_value(override: Override) -> bool:
    """Whether it is `key=value`, and neither a choice nor swept nor Hydra's own."""
    name = override.key_or_group
    marked = (override.is_add(), override.is_force_add(), override.is_delete())
    if any(marked) or override.is_sweep_override() or name in groups():
        return False
    return not _is_hydra(name)


def _first_value(override: Override) -> str:
    value, name = override.value(), override.key_or_group
    if isinstance(value, IntervalSweep):
        return str(value.start)
    if isinstance(value, Glob):
        options = [o for o in groups().get(name, []) if any(fnmatch(o, p) for p in value.include)]
    else:
        options = [str(v) for v in override.sweep_string_iterator()]
    if not options:
        raise UserError(f"the sweep has no jobs: {override.input_line} matches nothing")
    return options[0]
