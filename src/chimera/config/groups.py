"""Configuration groups and their options, as the files of `conf/` and `experiments/` give them."""

from __future__ import annotations

from functools import cache

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


#: The groups whose choices make up a model.
ZOO = ("mixer", "norm", "quant", "ffn", "position", "adapter")
