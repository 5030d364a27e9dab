"""Parse the overrides of a command line and check their choices and keys."""

from __future__ import annotations

from collections.abc import Set

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, Glob, Override, Sweep
from hydra.errors import HydraException, OverrideParseException

from chimera.config.groups import groups, is_part
from chimera.errors import UserError, nearest, unknown


def check_choices(overrides: list[str]) -> list[Override]:
    """Parse the overrides and check all choices of groups.

    Of a sweep, the names in `a,b` are checked; a `glob(…)` selects existing names itself.

    Raises:
        UserError: an override that cannot be read, a deletion, an unknown choice, a `+` too many
            or too few.
    """
    parsed = [_parse(text) for text in overrides]
    for override in parsed:
        _check_choice(override)
    return parsed


def _parse(text: str) -> Override:
    try:
        return OverridesParser.create().parse_overrides([text])[0]
    except (OverrideParseException, HydraException) as error:
        hint = "" if "=" in text else "; a choice is written group=name, a value key=value"
        raise UserError(f"cannot read the override '{text}'{hint}") from error


def is_choice(override: Override) -> bool:
    """Whether an override chooses an option of a group."""
    return override.key_or_group in groups()


def _names_part(override: Override) -> bool:
    """Whether the override's group is one of `conf/`, not a table of experiments."""
    return is_part(override.key_or_group)


def _check_choice(override: Override) -> None:
    group = override.key_or_group
    if override.is_delete():
        raise UserError(
            f"~{group} deletes a key, which is not allowed; to leave a part out, choose none, as in"
            " adapter=none"
        )
    if not is_choice(override):
        return
    value = override.value()
    if isinstance(value, Sweep | Glob):
        for name in value.list if isinstance(value, ChoiceSweep) else []:
            if str(name) not in groups()[group]:
                raise unknown(group, str(name), groups()[group])
        return
    if not isinstance(value, str):
        raise UserError(
            f"{group}={_shown(value)} is not one name; choose one of {', '.join(groups()[group])}"
        )
    if value not in groups()[group]:
        raise unknown(group, value, groups()[group])
    if override.is_add() and _names_part(override) and not override.package:
        raise UserError(f"+{group}={value}: {group} already has a choice; drop the +")
    if not override.is_add() and not _names_part(override):
        raise UserError(f"{group}={value} is an experiment; write +{group}={value}")


def check_key(override: Override, known_keys: Set[str]) -> None:
    """Refuse `key=value` for an unknown key and `+key=value` for a known one.

    Args:
        override: a `key=value`.
        known_keys: dotted keys of the configuration.

    Raises:
        UserError: naming the key, and near keys.
    """
    key = override.key_or_group
    if override.is_add() and key.startswith("callbacks."):  # the user's own callback
        return
    if key not in known_keys and not key.startswith("hydra"):
        raise UserError(f"{key} is no key of this configuration{hint(key, known_keys)}")
    if override.is_add() and not override.is_force_add():
        raise UserError(f"+{key}: {key} exists already; drop the +")


def hint(key: str, known_keys: Set[str]) -> str:
    """End of an error message about an unknown key.

    Suggests the same leaf under another parent, else a near spelling, else lists the parent's keys.
    """
    parent, _, leaf = key.rpartition(".")
    same_leaf = sorted(k for k in known_keys if k.rpartition(".")[2] == leaf)
    if same_leaf:
        return f"; did you mean '{same_leaf[0]}'?"
    siblings = sorted(
        k for k in known_keys if k.rpartition(".")[0] == parent and "_target_" not in k
    )
    if not parent:
        return nearest(key, {*known_keys, *groups()}) or f" (top level has {', '.join(siblings)})"
    leaves = ", ".join(k.rpartition(".")[2] for k in siblings)
    listed = f" ({parent} has {leaves})" if leaves else ""
    return nearest(key, siblings) or nearest(key, known_keys) or listed


def _shown(value: object) -> str:
    return str(value).replace("'", "")
