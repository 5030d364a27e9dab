"""Say what to write here for a key, flag or choice of Hydra, Lightning, and other programs.

Such a key is never ignored: it is refused in one line with the hint of `migration_hints.yaml`.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from chimera.config.groups import ZOO, groups
from chimera.errors import UserError
from chimera.program import command_name

#: Sections that other programs have too; the own keys of a component have no other name.
_COMMON = ("", "trainer", "train", "training", "eval", "args", "metrics", "checkpoint", "model")
_MORE = ("model_config", "data", "optim", "optimizer", "lr_scheduler")


@cache
def hints() -> dict[str, dict[str, Any]]:
    """Contents of `migration_hints.yaml`, with commands as the user calls them."""
    text = Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8")
    for command in ("train", "eval", "export"):
        text = text.replace(f"{{{command}}}", command_name(command))
    return yaml.safe_load(text)


def option_advice(group: str, option: str) -> str:
    """What to use in place of an option that belongs elsewhere; empty for any other.

    Args:
        group: of the choice, or a key.
        option: its value.
    """
    if text := hints()["options"].get(f"{group}={option}"):
        return str(text)
    own = [(f"{group}={name}", [name]) for name in groups().get(group, ())]
    for ours, theirs in [*own, *hints()["choices"].items()]:
        if group == ours.partition("=")[0] and _folded(option) in map(_folded, theirs):
            return f"write {ours.format(option)}"
    of = [each for each in (*ZOO, "preset") if group in groups() and option in groups()[each]]
    return f"{option} is a {of[0]}; write {of[0]}={option}" if of else ""


def _folded(name: Any) -> str:
    return re.sub(r"[-_ ]", "", str(name)).lower()


def group_advice(group: str, option: str) -> str:
    """What else a group takes than its options; empty where that is all."""
    file = re.search(r"[/.~]", option) is not None
    text = (file and hints()["files"].get(group)) or hints()["groups"].get(group)
    return f"; {text.format(option)}" if text else ""


def advice(key: str) -> str:
    """What to use in place of a key, or a key of a section, of elsewhere; empty for any other."""
    return key_advice(key) or section_advice(key)


def key_advice(key: str) -> str:
    """What to use in place of a key that belongs elsewhere, by its own name."""
    section, _, leaf = key.rpartition(".")
    here = [ours for ours, theirs in hints()["names"].items() if leaf in theirs]
    named = f"it is {here[0]} here" if here and section in _COMMON + _MORE else ""
    alone = hints()["keys"].get(leaf, named) if section in _COMMON else named
    return str(hints()["keys"].get(key, alone))


def section_advice(key: str) -> str:
    """What to use in place of the innermost section of elsewhere that a key is in."""
    section = key.rpartition(".")[0]
    return str(hints()["keys"].get(section) or section_advice(section)) if section else ""


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
