"""The overrides of a command line: read, and their choices and keys checked."""

from __future__ import annotations

from collections.abc import Set

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, Glob, Override, Sweep
from hydra.errors import HydraException, OverrideParseException

from chimera.config.groups import groups, is_part
from chimera.errors import UserError, nearest, unknown


def check_choices(overrides: list[str]) -> list[Override]:
    """The overrides, parsed; choices that are single names are checked, sweeps are not yet."""
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
    """Group choices of the run itself; experiments are left out, so that their typos are seen."""
    return is_part(override.key_or_group)


def _check_choice(override: Override) -> None:
    group = override.key_or_group
    if override.is_delete():
        raise UserError(
            f"~{group} deletes; a part is left out by choosing none, as in adapter=none"
        )
    if not is_choice(override):
        return
    value = override.value()
    if isinstance(value, Sweep | Glob):  # `a,b` names options; `glob(*)` finds them itself
        for name in value.list if isinstance(value, ChoiceSweep) else []:
            if str(name) not in groups()[group]:
                raise unknown(group, str(name), groups()[group])
        return
    if not isinstance(value, str):
        raise UserError(
            f"{group}={_shown(value)} is no single name; choose one of {', '.join(groups()[group])}"
        )
    if value not in groups()[group]:
        raise unknown(group, value, groups()[group])
    if override.is_add() and _names_part(override) and not override.package:
        raise UserError(f"+{group}={value}: {group} has a choice already; drop the +")
    if not override.is_add() and not _names_part(override):
        raise UserError(f"{group}={value} is an experiment; write +{group}={value}")


def check_key(override: Override, known: Set[str]) -> None:
    """Refuse an override of a key that is not there, or one that adds a key that is.

    Args:
        override: a `key=value`.
        known: dotted keys of the configuration.
    """
    key = override.key_or_group
    if override.is_add() and key.startswith("callbacks."):  # a callback of the user's own
        return
    if key not in known and not key.startswith("hydra"):
        raise UserError(f"{key} is no key of this configuration{hint(key, known)}")
    if override.is_add() and not override.is_force_add():
        raise UserError(f"+{key}: {key} is there already; drop the +")


def hint(key: str, known: Set[str]) -> str:
    """What was probably meant: the leaf under another parent, a near spelling, or what there is."""
    parent, _, leaf = key.rpartition(".")
    elsewhere = sorted(k for k in known if k.rpartition(".")[2] == leaf)
    if elsewhere:
        return f"; did you mean '{elsewhere[0]}'?"
    beside = sorted(k for k in known if k.rpartition(".")[0] == parent and "_target_" not in k)
    if not parent:
        return nearest(key, {*known, *groups()}) or f" (top level has {', '.join(beside)})"
    has = ", ".join(k.rpartition(".")[2] for k in beside)
    return nearest(key, beside) or nearest(key, known) or (f" ({parent} has {has})" if has else "")


def _shown(value: object) -> str:
    return str(value).replace("'", "")
