"""Configuration groups and their options, as the files of `conf/` and `experiments/` give them."""

from __future__ import annotations

from functools import cache
from typing import Any

import yaml

from chimera.paths import CONF, EXPERIMENTS


@cache
def groups() -> dict[str, list[str]]:
    """Every config group with its options: `{'mixer': ['attention', …], …}`."""
    found: dict[str, list[str]] = {}
    for root in (CONF, EXPERIMENTS):
        for file in sorted(root.rglob("*.yaml")):
            group = file.parent.relative_to(root).as_posix()
            if group != ".":
                found.setdefault(group, []).append(file.stem)
    return found


@cache
def defaults() -> dict[str, str]:
    """The option that each group has by default, as `conf/config.yaml` lists them."""
    listed = yaml.safe_load((CONF / "config.yaml").read_text(encoding="utf-8"))["defaults"]
    return {
        group: name for entry in listed if isinstance(entry, dict) for group, name in entry.items()
    }


def node(group: str, name: str) -> dict[str, Any]:
    """One option's YAML file, not composed: `_target_` and what else stands in it."""
    text = (CONF / group / f"{name}.yaml").read_text(encoding="utf-8")
    loaded: dict[str, Any] = yaml.safe_load(text)
    return loaded


#: The groups whose choices make up a model.
ZOO = ("mixer", "norm", "quant", "ffn", "position", "adapter")
