"""Read the `key=value` arguments of a command into a settings class, whose fields are the schema.

All commands use this except `train.py`, which reads Hydra's overrides.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import yaml

from chimera.config.schema import check_value
from chimera.errors import UserError, nearest

Settings = TypeVar("Settings")


def read(
    settings_class: type[Settings],
    arguments: Sequence[str],
    usage: str,
    *,
    unread: list[str] | None = None,
) -> Settings:
    """Read arguments into an instance of `settings_class`; check each value against its field.

    Args:
        settings_class: a dataclass.
        arguments: of the command line.
        usage: correct form of the command, shown in error messages.
        unread: list to which arguments with other keys are appended; None refuses them.

    Raises:
        UserError: an unknown key, a value of another type or range, a missing required key.
    """
    hints = get_type_hints(settings_class, include_extras=True)
    required = [
        field.name
        for field in fields(settings_class)  # type: ignore[arg-type]
        if field.default is field.default_factory is MISSING
    ]
    values: dict[str, Any] = {}
    for argument in arguments:
        key, equals, text = argument.partition("=")
        if equals and key in hints:
            if key in required and not text.strip():
                continue  # reported as missing
            values[key] = _value(key, text, hints[key])
        elif unread is not None:
            unread.append(argument)
        else:
            raise UserError(f"cannot read '{argument}'{nearest(key, hints)}; write {usage}")
    if missing := [name for name in required if not values.get(name)]:
        raise UserError(f"{missing[0]}= is missing; write {usage}")
    return settings_class(**values)


def describe(settings_class: type, usage: str) -> str:
    """Help text of a command: its usage, then the `Args:` lines of the class's docstring."""
    about = (settings_class.__doc__ or "").partition("Args:")[2].split("\n")
    return "\n".join([usage, *(line for line in about if line.strip())])


def _value(key: str, text: str, hint: Any) -> Any:
    """Convert text to the type of its field: `a,b` for a list, YAML for numbers and truth values.

    Raises:
        UserError: the value is not of the field's type or range.
    """
    types = (hint, *get_args(hint))
    lists = [option for option in types if get_origin(option) is list]
    if Path in types:
        return Path(text).expanduser()
    if lists:
        element = get_args(lists[0])[0]
        value: Any = [_value(key, part, element) for part in text.split(",") if part]
    elif str in types:  # a prompt such as `12` stays text
        value = text
    else:
        try:
            value = yaml.safe_load(text)
        except yaml.YAMLError:
            value = text
        if isinstance(value, str):  # YAML reads 1e-3 as text
            with contextlib.suppress(ValueError):
                value = float(value)
    check_value(key, value, hint)
    return value
