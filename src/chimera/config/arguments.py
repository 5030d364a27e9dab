"""Read the `key=value` arguments of a command into a settings class, whose fields are the schema.

All commands use this except `train.py`, which reads Hydra's overrides.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from pydantic import TypeAdapter, ValidationError

from chimera.config import migration_hints
from chimera.config.schema import STRICT, check_value
from chimera.errors import UserError, nearest
from chimera.safe_io import expanded

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
    values: dict[str, str] = {}
    for argument in arguments:
        key, equals, text = argument.partition("=")
        if equals and key in values:
            raise UserError(f"{key}= is there twice; give it once")
        if equals and key in hints:
            values[key] = text
        elif unread is not None:
            unread.append(argument)
        else:
            meant = _meant(argument, {name: name in values for name in hints})
            raise UserError(f"cannot read '{argument}'{meant}; write {usage}")
    for field in fields(settings_class):  # type: ignore[arg-type]
        if _is_required(field) and not values.get(field.name, "").strip(" ,"):
            raise UserError(f"{field.name}= is missing; write {usage}")
    return settings_class(**{key: _value(key, text, hints[key]) for key, text in values.items()})


def _meant(argument: str, given: dict[str, bool]) -> str:
    """What an argument may have been: a key of another name, with dashes, or a value without a key.

    Args:
        argument: that was not read.
        given: for each key whether the command has it.
    """
    key, equals, value = argument.partition("=")
    name = key.lstrip("-").replace("-", "_")
    theirs = migration_hints.hints()["arguments"]
    keys = [own for own in given if name == own or name in theirs.get(own, ())]
    if not equals and not key.startswith("-"):
        keys = [own for own in ("run", "prompt") if not given.get(own, True)]
        value = shlex.quote(argument)
    return f"; did you mean {keys[0]}={value or '…'}?" if keys else nearest(key, given)


def _is_required(field: Field[Any]) -> bool:
    return field.default is field.default_factory is MISSING


def usage(call: str, settings_class: type, words: str = "") -> str:
    """How a command is written, as `chimera eval run=<path> [length=<number>] [trust=true]`.

    Args:
        call: the program and the command.
        settings_class: a dataclass.
        words: what the command takes beside `key=value`.
    """
    hints = get_type_hints(settings_class, include_extras=True)
    parts = [call, words] if words else [call]
    for field in fields(settings_class):
        text = f"{field.name}={_placeholder(hints[field.name])}"
        parts.append(text if _is_required(field) else f"[{text}]")
    return " ".join(parts)


def _placeholder(hint: Any) -> str:
    """What stands for a value of a type in a usage line."""
    arguments = get_args(hint)
    if get_origin(hint) is Literal:
        return "|".join(map(str, arguments))
    if get_origin(hint) is list:
        return f"{_placeholder(arguments[0])},…"
    if arguments:  # Annotated[int, …] or int | None
        return _placeholder(arguments[0])
    return {bool: "true", Path: "<path>", str: "<text>"}.get(hint, "<number>")


def describe(settings_class: type, usage: str) -> str:
    """Help text of a command: its usage, then the `Args:` lines of the class's docstring."""
    about = (settings_class.__doc__ or "").partition("Args:")[2].split("\n")
    return "\n".join([usage, *(line for line in about if line.strip())])


def _value(key: str, text: str, hint: Any) -> Any:
    """Convert text to the type of its field: `a,b` or `[a,b]` for a list.

    Raises:
        UserError: the value is not of the field's type or range.
    """
    if get_origin(hint) is list:
        (element,) = get_args(hint)
        text = text[1:-1] if text.startswith("[") and text.endswith("]") else text
        return [_value(key, part.strip(), element) for part in text.split(",") if part.strip()]
    try:
        value = TypeAdapter(hint, config=STRICT).validate_strings(text)
    except ValidationError:
        check_value(key, text, hint)  # says what is allowed
        raise
    return expanded(value) if isinstance(value, Path) else value
