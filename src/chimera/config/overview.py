"""The argument `format=` of `python train.py show`."""

from __future__ import annotations

from chimera.errors import UserError

FORMATS = ("text", "json", "mermaid")


def format_of(overrides: list[str]) -> tuple[str, list[str]]:
    """The format that `format=` names, `text` by default, and the other overrides.

    Raises:
        UserError: another format.
    """
    chosen = [o.partition("=")[2] for o in overrides if o.startswith("format=")]
    name = chosen[-1] if chosen else "text"
    if name not in FORMATS:
        raise UserError(f"format={name} is not known; choose one of {', '.join(FORMATS)}")
    return name, [o for o in overrides if not o.startswith("format=")]
