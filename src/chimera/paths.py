"""Paths: configuration and tables of the package, the checkout, the folder of runs."""

from __future__ import annotations

import os
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent


def _checkout() -> Path | None:
    """The tree whose `src/chimera` this package is; None for one that was installed from a wheel.

    A wheel holds `conf/` inside the package. A folder `conf/` above an installed package belongs to
    somebody else: the project whose virtual environment it is in.
    """
    tree = PACKAGE.parents[1]
    installed = (PACKAGE / "conf").is_dir()
    return tree if not installed and (tree / "conf" / "config.yaml").is_file() else None


#: The checkout; None if the package was installed from a wheel.
CHECKOUT = _checkout()
#: The checkout, or the current folder without one.
ROOT = CHECKOUT or Path()
#: Folders of the configuration groups and of the papers' tables: of the checkout, or shipped.
CONF, EXPERIMENTS = ((CHECKOUT or PACKAGE) / name for name in ("conf", "experiments"))
#: Variable of the environment that holds the folders of configuration that the user named.
VARIABLE = "CHIMERA_CONFIG_PATH"
#: Key of these folders in a run's environment.json.
FOLDERS = "config_dirs"


def named(folder: str) -> Path:
    """A folder that a configuration names; one below `experiments/` is found wherever those are.

    Scales name the shapes of models among the tables so, and a process may be in any folder.
    """
    path = Path(os.path.expanduser(folder))
    among = EXPERIMENTS.parent / path
    return among if folder.startswith("experiments/") and not path.is_dir() else path


def home() -> Path:
    """Folder below which `runs/` and `reports/` are: the current one.

    It is the checkout for a process in one of its folders, such as a notebook in `notebooks/`.
    """
    here = Path.cwd()
    return CHECKOUT if CHECKOUT is not None and here.is_relative_to(CHECKOUT) else here


def runs_root() -> Path:
    """Folder of all runs: `CHIMERA_RUNS` if it is set, else `runs/` below `home`."""
    return Path(os.path.expanduser(os.environ.get("CHIMERA_RUNS") or home() / "runs"))


def cache_root() -> Path:
    """Folder of what can be made anew: `CHIMERA_CACHE` if it is set, else `~/.cache/chimera`."""
    return Path(os.path.expanduser(os.environ.get("CHIMERA_CACHE") or "~/.cache/chimera"))


def records_roots() -> list[Path]:
    """Folders with records of runs: that of `CHIMERA_RECORDS`, else two below `home`."""
    named = os.environ.get("CHIMERA_RECORDS")
    return (
        [Path(os.path.expanduser(named))] if named else [home() / "experiments", home() / "records"]
    )


def config_folders() -> list[Path]:
    """The folders of configuration that the user named, in their order."""
    return [Path(path) for path in os.environ.get(VARIABLE, "").split(os.pathsep) if path]
