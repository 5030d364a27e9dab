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


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader without aliases."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.composer.ComposerError(None, None, "it repeats a node by an alias")
        return super().compose_node(parent, index)


def read_yaml(file: Path) -> dict[str, Any]:
    """The mapping in a YAML file.

    Raises:
        UserError: it holds something else than plain values.
    """
    try:
        loaded = yaml.load(file.read_text(encoding="utf-8"), _Loader)
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise _unreadable(file, error) from error
    return _mapping(file, loaded)


def read_json(file: Path) -> dict[str, Any]:
    """The mapping in a JSON file; empty where there is no file.

    Raises:
        UserError: it holds something else.
    """
    try:
        loaded = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise _unreadable(file, error) from error
    return _mapping(file, loaded)


def _mapping(file: Path, loaded: Any) -> dict[str, Any]:
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


def _unreadable(file: Path, error: BaseException) -> UserError:
    why = " ".join(str(error).split())[:200] or type(error).__name__
    return UserError(f"{file} cannot be read: {why}")
