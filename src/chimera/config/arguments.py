"""Read the `key=value` arguments of a command into a settings class, whose fields are the schema.

`train.py` takes Hydra's overrides instead; all other commands read theirs here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import yaml

from chimera.config.schema import check_value
from chimera.errors import UserError, nearest

Settings = TypeVar("Settings")


def read(
    kind: type[Settings],
    arguments: Sequence[str],
    usage: str,
    *,
    others: list[str] | None = None,
) -> Settings:
    """An instance of `kind` with the values given, each checked against its field's type.

    Args:
        kind: a dataclass.
        arguments: of the command line.
        usage: what to write instead, shown where an argument cannot be read or is missing.
        others: takes the arguments whose keys are no field; None refuses them.

    Raises:
        UserError: an unknown key, a value of another type or range, a required key left out.
    """
    hints = get_type_hints(kind, include_extras=True)
    given: dict[str, Any] = {}
    for argument in arguments:
        key, equals, text = argument.partition("=")
        if equals and key in hints:
            given[key] = _value(key, text, hints[key])
        elif others is not None:
            others.append(argument)
        else:
            raise UserError(f"cannot read '{argument}'{nearest(key, hints)}; write {usage}")
    required = [f.name for f in fields(kind) if f.default is f.default_factory is MISSING]  # type: ignore[arg-type]
    if missing := [name for name in required if not given.get(name)]:
        raise UserError(f"{missing[0]}= is missing; write {usage}")
    return kind(**given)


def describe(kind: type, usage: str) -> str:
    """The help of a command: its usage, then a line per key from the class's docstring."""
    about = (kind.__doc__ or "").partition("Args:")[2].split("\n")
    return "\n".join([usage, *(line for line in about if line.strip())])


def _value(key: str, text: str, hint: Any) -> Any:
    """The text as its field's type: a list is written `a,b`; a text stays what it is."""
    kinds = (hint, *get_args(hint))
    lists = [one for one in kinds if get_origin(one) is list]
    if Path in kinds:
        return Path(text).expanduser()
    if lists:
        element = get_args(lists[0])[0]
        value: Any = [_value(key, part, element) for part in text.split(",") if part]
    elif str in kinds:  # a prompt is text whatever it looks like
        value = text
    else:
        try:
            value = yaml.safe_load(text)
        except yaml.YAMLError:
            value = text
    check_value(key, value, hint)
    return value
