"""Words of the command line from Python: overrides as text, values in Hydra's notation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from chimera.config.compose import compose, plain
from chimera.config.groups import ZOO, read_folders
from chimera.config.schema import check_node
from chimera.errors import UserError


def overrides_of(words: Sequence[object]) -> list[str]:
    """The overrides among words of a command line; folders of configuration are read.

    Args:
        words: as `chimera train` takes them: `group=choice`, `key=value`, `--config-dir=<folder>`.

    Raises:
        UserError: a word that is no text, or a flag other than `--config-dir`.
    """
    for word in words:
        if not isinstance(word, str):
            raise UserError(f"{word!r} is no text; write 'group=choice' or 'key=value'")
    left = read_folders([str(word) for word in words])
    if flags := [word for word in left if word.startswith("-")]:
        raise UserError(f"{flags[0]} is a flag of the command line; here only --config-dir is one")
    return left


def composed(words: Sequence[str]) -> dict[str, Any]:
    """The configuration of these overrides, with model, task and parts checked.

    Raises:
        UserError: one line.
    """
    config = plain(compose(list(words)))
    for group in ("model", "task", *ZOO):
        check_node(group, config[group])
    return config


def settings(group: str, options: Mapping[str, Any]) -> list[str]:
    """Overrides `group.key=value` of keyword arguments."""
    return [f"{group}.{key}={_text(value)}" for key, value in options.items()]


def _text(value: Any) -> str:
    """A value in Hydra's notation.

    Raises:
        UserError: it is no number, text, truth value, None, or list or dictionary of these.
    """
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        escaped = value.replace("\\'", "\\\\'").replace("'", "\\'")
        return f"'{escaped}'"
    if isinstance(value, list | tuple):
        return f"[{','.join(map(_text, value))}]"
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{_text(item)}" for key, item in value.items()) + "}"
    raise UserError(
        f"{value!r} is no value of a setting; give a number, a text, True, False, None, a list or a"
        " dictionary"
    )
