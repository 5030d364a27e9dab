"""Configuration groups and their options, as the files of `conf/` and `experiments/` give them."""

from __future__ import annotations

from functools import cache
from typing import Any

import yaml

from chimera.config.roots import find, roots
from chimera.errors import UserError
from chimera.paths import CONF


@cache
def groups() -> dict[str, list[str]]:
    """Every config group with its options: `{'mixer': ['attention', …], …}`.

    Raises:
        UserError: two folders have an option of the same name.
    """
    found: dict[str, dict[str, None]] = {}
    for root in roots():
        for file in sorted(root.rglob("*.yaml")):
            group = file.parent.relative_to(root).as_posix()
            if group == ".":
                continue
            if file.stem in found.setdefault(group, {}):
                raise UserError(f"{file}: there is a {group}={file.stem} already; rename the file")
            found[group][file.stem] = None
    return {group: sorted(options) for group, options in found.items()}


@cache
def defaults() -> dict[str, str]:
    """The option that each group has by default, as `conf/config.yaml` lists them."""
    listed = yaml.safe_load((CONF / "config.yaml").read_text(encoding="utf-8"))["defaults"]
    return {
        group: name for entry in listed if isinstance(entry, dict) for group, name in entry.items()
    }


def is_part(group: str) -> bool:
    """Whether a group is of the configuration itself; the others are tables and their papers."""
    return (CONF / group).is_dir()


def node(group: str, name: str) -> dict[str, Any]:
    """One option's YAML file, not composed: `_target_` and what else stands in it."""
    text = find(f"{group}/{name}").read_text(encoding="utf-8")
    loaded: dict[str, Any] = yaml.safe_load(text)
    return loaded


#: The groups whose choices make up a model.
ZOO = ("mixer", "norm", "quant", "ffn", "position", "adapter")
