"""Say what to write here for a key, flag or choice of Hydra, Lightning, and other programs.

Such a key is never ignored: it is refused in one line with the hint of `migration_hints.yaml`.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from chimera.errors import UserError
from chimera.program import command_name

#: Sections that other programs have too; the own keys of a component have no other name.
_COMMON = ("", "trainer", "train", "training", "model", "data", "optim", "optimizer", "args")


@cache
def hints() -> dict[str, dict[str, Any]]:
    """Contents of `migration_hints.yaml`, with commands as the user calls them."""
    text = Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8")
    for command in ("train", "eval"):
        text = text.replace(f"{{{command}}}", command_name(command))
    found: dict[str, dict[str, Any]] = yaml.safe_load(text)
    return found


def option_advice(group: str, option: str) -> str:
    """What to use in place of an option that belongs elsewhere; empty for any other."""
    text = hints()["options"].get(f"{group}={option}")
    if text is None and group in hints()["files"] and re.search(r"[/.~]", option):
        text = hints()["files"][group].format(option)
    return f"; {text}" if text else ""


def advice(key: str) -> str:
    """What to use in place of a key that belongs elsewhere; empty for any other key."""
    name = key
    while name:
        if text := hints()["keys"].get(name):
            return str(text)
        name = name.rpartition(".")[0]
    section, _, leaf = key.rpartition(".")
    here = [ours for ours, theirs in hints()["names"].items() if leaf in theirs]
    return f"it is {here[0]} here" if here and section in _COMMON else ""


def check_hydra(key: str) -> None:
    """Refuse a setting of Hydra's own.

    Args:
        key: dotted key, or group such as `hydra/launcher`; others pass.

    Raises:
        UserError: with what to use here.
    """
    dotted = key.replace("/", ".")
    if dotted.partition(".")[0] == "hydra":
        raise UserError(f"{key} has no effect here; {advice(dotted)}")
