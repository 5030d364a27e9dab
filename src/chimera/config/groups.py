"""Configuration groups and their options, read from the files of all configuration folders."""

from __future__ import annotations

from functools import cache
from typing import Any

import yaml

from chimera.config.config_folders import find, roots
from chimera.errors import UserError
from chimera.paths import CONF


@cache
def groups() -> dict[str, list[str]]:
    """All configuration groups with their options: `{'mixer': ['attention', …], …}`.

    Raises:
        UserError: two folders have an option of the same name.
    """
    options: dict[str, dict[str, None]] = {}
    for root in roots():
        for file in sorted(root.rglob("*.yaml")):
            group = file.parent.relative_to(root).as_posix()
            if group == ".":
                continue
            group, name = _place(group, file.stem)
            if name in options.setdefault(group, {}):
                raise UserError(f"{file}: {group}={name} exists already; rename the file")
            options[group][name] = None
    return {group: sorted(names) for group, names in options.items()}


def _place(folder: str, stem: str) -> tuple[str, str]:
    """Group and option of a file: `data/mad/mqar.yaml` is `data=mad/mqar`; tables are groups."""
    top, _, inside = folder.partition("/")
    return (top, f"{inside}/{stem}") if inside and is_part(top) else (folder, stem)


@cache
def defaults() -> dict[str, str]:
    """Default option of each group, as listed in `conf/config.yaml`."""
    listed = yaml.safe_load((CONF / "config.yaml").read_text(encoding="utf-8"))["defaults"]
    return {
        group: name for entry in listed if isinstance(entry, dict) for group, name in entry.items()
    }


def is_part(group: str) -> bool:
    """Whether a group is a folder of `conf/`; other groups are papers and their tables."""
    return (CONF / group).is_dir()


def node(group: str, name: str) -> dict[str, Any]:
    """Contents of one option's YAML file (`_target_`, keys, defaults), before composition."""
    text = find(f"{group}/{name}").read_text(encoding="utf-8")
    loaded: dict[str, Any] = yaml.safe_load(text)
    return loaded


#: Groups of the components that make up a model.
ZOO = ("mixer", "norm", "quant", "ffn", "position", "adapter")
