"""Read YAML and JSON that somebody else may have written: plain values only, one line otherwise.

A YAML file may build no objects and repeat no node by an alias, so that no few bytes become
gigabytes; neither kind may nest deeper than any configuration does.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from chimera.errors import UserError

#: Levels of mappings and lists that a file may nest.
DEEPEST = 40


#: The C library is eight times as fast; PyYAML may have been built without it.
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_yaml(file: Path) -> dict[str, Any]:
    """The mapping in a YAML file.

    Raises:
        UserError: it holds something else than plain values.
    """
    try:
        text = file.read_text(encoding="utf-8")
        _check_events(file, text)
        loaded = yaml.load(text, _LOADER)
    except UserError:  # which is a ValueError
        raise
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise _unreadable(file, error) from error
    return _mapping(file, loaded)


def read_json(file: Path) -> dict[str, Any]:
    """The mapping in a JSON file; empty where there is no file.

    Raises:
        UserError: it holds something else.
    """
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise _unreadable(file, error) from error
    return parse_json(text, str(file))


def parse_json(text: str | bytes, where: str) -> dict[str, Any]:
    """The mapping in a JSON text.

    Args:
        text: any.
        where: it was read, for the message.

    Raises:
        UserError: it holds something else.
    """
    try:
        loaded = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _unreadable(where, error) from error
    return _mapping(where, loaded)


def _check_events(file: Path, text: str) -> None:
    """Refuse aliases and depth before nodes are built: the C library recurses on its own stack.

    Raises:
        UserError: the file nests too deep, or is a list.
    """
    depth = 0
    for event in yaml.parse(text, _LOADER):
        if not depth and isinstance(event, yaml.SequenceStartEvent):
            raise UserError(f"{file} holds no mapping of keys to values")
        if isinstance(event, yaml.AliasEvent):
            raise yaml.composer.ComposerError(None, None, "it repeats a node by an alias")
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > DEEPEST:
            raise UserError(f"{file} nests more than {DEEPEST} levels deep")


def _mapping(file: Path | str, loaded: Any) -> dict[str, Any]:
    if not isinstance(loaded, dict):
        raise UserError(f"{file} holds no mapping of keys to values")
    level: list[Any] = [loaded]
    depth = 0
    while level:
        depth += 1
        inner = (each.values() if isinstance(each, dict) else each for each in level)
        level = [value for values in inner for value in values if isinstance(value, dict | list)]
        if depth > DEEPEST:
            raise UserError(f"{file} nests more than {DEEPEST} levels deep")
    return loaded


def _unreadable(file: Path | str, error: BaseException) -> UserError:
    why = " ".join(str(error).split())[:200] or type(error).__name__
    return UserError(f"{file} cannot be read: {why}")
