"""Paths: configuration and tables of the package, the checkout, the folder of runs."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent


@cache
def _checkout() -> Path | None:
    """Nearest folder above the package that holds `conf/config.yaml`; None if there is none."""
    return next((p for p in PACKAGE.parents if (p / "conf" / "config.yaml").is_file()), None)


def _data(name: str) -> Path:
    """Path of a folder of package data: in the installed package, else in the checkout."""
    inside = PACKAGE / name
    return inside if inside.is_dir() else (_checkout() or PACKAGE) / name


#: The checkout, or the current folder if the package is installed without a checkout.
ROOT = _checkout() or Path.cwd()
#: Folders of the configuration groups and of the papers' tables.
CONF, EXPERIMENTS = _data("conf"), _data("experiments")


def runs_root() -> Path:
    """Folder of all runs: `CHIMERA_RUNS` if it is set, else `runs/` of the checkout."""
    return Path(os.environ.get("CHIMERA_RUNS") or ROOT / "runs")
