"""Folders that configuration is read from: Chimera's own, those of plugins, those of the user.

A folder has groups (`mixer/mine.yaml`) and tables (`<paper>/<table>.yaml`), as `conf/` and
`experiments/` have. A plugin is an installed package that names itself in the entry-point group
`chimera.plugins`; its folders `conf/` and `experiments/` count. The user names folders with
`--config-dir` or `hydra.searchpath`; they are kept in the environment, so that the jobs of a sweep
find them too. Classes of a user's folder are imported from beside it.
"""

from __future__ import annotations

import os
import sys
from functools import cache
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path

from chimera.errors import UserError
from chimera.paths import CONF, EXPERIMENTS

PLUGINS, VARIABLE = "chimera.plugins", "CHIMERA_CONFIG_PATH"


def add(folder: str) -> None:
    """Read configuration from one more folder, in this process and in those that it starts.

    Args:
        folder: a path, `file://<path>` or `pkg://<package>`.

    Raises:
        UserError: there is no such folder.
    """
    place = (
        _package(folder[6:]) if folder.startswith("pkg://") else [folder.removeprefix("file://")]
    )
    for one in map(Path, place):
        if not one.is_dir():
            raise UserError(f"--config-dir={folder} is no folder; name one that holds mixer/, …")
        known = os.environ.get(VARIABLE, "").split(os.pathsep)
        if str(one.resolve()) not in known:
            os.environ[VARIABLE] = os.pathsep.join(filter(None, [*known, str(one.resolve())]))
    roots.cache_clear()


@cache
def roots() -> tuple[Path, ...]:
    """The folders, in the order of their precedence: a name in two of them is the first one's."""
    own = [Path(folder) for folder in os.environ.get(VARIABLE, "").split(os.pathsep) if folder]
    for folder in own:
        if str(folder.parent) not in sys.path:
            sys.path.append(str(folder.parent))
    found = [CONF, EXPERIMENTS, *own, *_of_plugins()]
    return tuple(dict.fromkeys(folder for folder in found if folder.is_dir()))


def find(path: str) -> Path:
    """The YAML file of `<group>/<option>`, in whichever folder has it."""
    return next(file for root in roots() if (file := root / f"{path}.yaml").is_file())


def _of_plugins() -> list[Path]:
    return [
        Path(place) / name
        for point in entry_points(group=PLUGINS)
        for place in _package(point.value.partition(":")[0])
        for name in ("conf", "experiments")
    ]


def _package(name: str) -> list[str]:
    """The folders of a package, without importing it."""
    spec = find_spec(name)
    if spec is None or spec.submodule_search_locations is None:
        raise UserError(f"pkg://{name} is no installed package")
    return list(spec.submodule_search_locations)
