"""Folders from which configuration is read, with their groups and the options of each.

A folder holds groups (`mixer/mine.yaml`) and tables (`<paper>/<table>.yaml`), like `conf/` and
`experiments/`. A plugin is an installed package that is listed in the entry-point group
`chimera.plugins`; its folders `conf/` and `experiments/` are read. The user names folders with
`--config-dir` or `hydra.searchpath`. The names are stored in the environment, so that the jobs of a
sweep find the folders too. A user's classes are imported from the parent of the folder.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from functools import cache
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from chimera.errors import UserError, check_utf8
from chimera.paths import CONF, EXPERIMENTS, VARIABLE, config_folders
from chimera.safe_io import expanded, read_yaml

#: Groups of the components that make up a model.
ZOO = ("mixer", "norm", "quant", "ffn", "position", "adapter")
#: Groups of which a run has one node each, built also when a run is read back.
BUILT = ("model", *ZOO, "data", "tokenizer", "task", "trainer", "optim")
PLUGINS = "chimera.plugins"


def read_folders(arguments: Sequence[str]) -> list[str]:
    """The arguments without those that name more folders of configuration, which are then read.

    `--config-dir DIR`, `-cd DIR`, `--config-dir=DIR`, `hydra.searchpath=[file://DIR,pkg://package]`.

    Raises:
        UserError: a folder that is not there, or an argument that is not UTF-8.
    """
    left = list[str]()
    remaining = iter(arguments)
    for argument in remaining:
        check_utf8(argument)
        flag, equals, value = argument.partition("=")
        if flag in ("--config-dir", "-cd"):
            add(value if equals else next(remaining, ""))
        elif flag == "hydra.searchpath":
            for part in filter(str.strip, value.strip("[]").split(",")):
                add(part.strip(" '\""))
        else:
            left.append(argument)
    return left


def add(folder: str) -> None:
    """Add a folder of configuration, for this process and its child processes.

    Args:
        folder: a path, `file://<path>` or `pkg://<package>`.

    Raises:
        UserError: no such folder.
    """
    package = folder.startswith("pkg://")
    paths = _package(folder[6:]) if package else [folder.removeprefix("file://")]
    for path in map(expanded, paths):
        if not path.is_dir():
            raise UserError(f"--config-dir={folder} is no folder; name one that holds mixer/, …")
        os.environ[VARIABLE] = os.pathsep.join(
            map(str, dict.fromkeys([*config_folders(), path.resolve()]))
        )
    forget()


@cache
def roots() -> tuple[Path, ...]:
    """All folders in the order of precedence: of two files with the same name the first counts."""
    for folder in config_folders():
        if str(folder.parent) not in sys.path:
            sys.path.append(str(folder.parent))
    plugins = [
        Path(package) / name
        for point in entry_points(group=PLUGINS)
        for package in _package(point.value.partition(":")[0])
        for name in ("conf", "experiments")
    ]
    folders = [CONF, EXPERIMENTS, *config_folders(), *plugins]
    return tuple(dict.fromkeys(folder for folder in folders if folder.is_dir()))


def _package(name: str) -> list[str]:
    """Find the folders of a package without importing it.

    Raises:
        UserError: the package is not installed.
    """
    spec = find_spec(name)
    if spec is None or spec.submodule_search_locations is None:
        raise UserError(f"pkg://{name} is not an installed package; install it")
    return list(spec.submodule_search_locations)


def forget() -> None:
    """Empty the caches of `chimera.config`: in Python, a folder may come after a first use."""
    for name, module in list(sys.modules.items()):
        if name.startswith("chimera.config."):
            for value in list(vars(module).values()):
                if callable(clear := getattr(value, "cache_clear", None)):
                    clear()


@cache
def groups() -> dict[str, list[str]]:
    """All configuration groups with their options: `{'mixer': ['attention', …], …}`.

    Raises:
        UserError: two folders have an option of the same name.
    """
    options: dict[str, list[str]] = {}
    for root in roots():
        for file in sorted(root.glob("*/**/*.yaml")):
            group, _, name = file.relative_to(root).with_suffix("").as_posix().rpartition("/")
            top, _, inside = group.partition("/")
            if inside and is_part(top):  # data/mad/mqar.yaml is data=mad/mqar; tables are groups
                group, name = top, f"{inside}/{name}"
            if name in options.setdefault(group, []):
                raise UserError(f"{file}: {group}={name} exists already; rename the file")
            options[group].append(name)
    return {group: sorted(names) for group, names in options.items()}


def pattern_depth(mixer: str) -> int:
    """Layers until each member of a pattern has come, at least two."""
    cycle = node("mixer", mixer).get("cycle") or [mixer]
    return max(2, *(cycle.index(member) + 1 for member in cycle))


def is_part(group: str) -> bool:
    """Whether a group is a folder of `conf/`; other groups are papers and their tables."""
    return (CONF / group).is_dir()


@cache
def defaults() -> dict[str, str]:
    """Default option of each group, as listed in `conf/config.yaml`."""
    listed = contents(CONF / "config.yaml")["defaults"]
    return {g: name for entry in listed if isinstance(entry, dict) for g, name in entry.items()}


def find(path: str) -> Path:
    """Path of the YAML file of `<group>/<option>` in the first folder that has it."""
    return next(file for root in roots() if (file := root / f"{path}.yaml").is_file())


def node(group: str, name: str) -> dict[str, Any]:
    """Contents of one option's YAML file (`_target_`, keys, defaults), before composition."""
    return contents(find(f"{group}/{name}"))


def contents(file: Path) -> dict[str, Any]:
    """The mapping in a file of configuration.

    Raises:
        UserError: it cannot be read, or holds something else.
    """
    return read_yaml(file, own=True)
