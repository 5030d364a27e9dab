"""Where things are: configuration and tables of the package, the checkout, the folder of runs."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent


@cache
def _checkout() -> Path | None:
    """The nearest folder above the package that holds `conf/config.yaml`; None if installed."""
    return next((p for p in PACKAGE.parents if (p / "conf" / "config.yaml").is_file()), None)


def _data(name: str) -> Path:
    """A folder of package data: inside the installed package, else in the checkout."""
    inside = PACKAGE / name
    return inside if inside.is_dir() else (_checkout() or PACKAGE) / name


#: The checkout; where the package is installed without one, the current folder.
ROOT = _checkout() or Path.cwd()
#: Configuration groups, and the tables of the papers.
CONF, EXPERIMENTS = _data("conf"), _data("experiments")


def runs_root() -> Path:
    """Where runs go: `CHIMERA_RUNS` if it is set, else `runs/` of the checkout."""
    return Path(os.environ.get("CHIMERA_RUNS") or ROOT / "runs")
