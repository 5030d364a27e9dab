"""Values as overrides of the command line have them, in Hydra's notation. Does not import torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chimera.errors import UserError


def text(value: Any) -> str:
    """A value in the notation of the command line.

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
        return f"[{','.join(map(text, value))}]"
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{text(item)}" for key, item in value.items()) + "}"
    raise UserError(
        f"{value!r} is no value of a setting; give a number, a text, True, False, None, a list or a"
        " dictionary"
    )
