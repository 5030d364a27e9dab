"""Hydra, told of `experiments/`, for composing from Python."""

from __future__ import annotations

from pathlib import Path

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.global_hydra import GlobalHydra
from hydra.core.plugins import Plugins
from hydra.errors import ConfigCompositionException, HydraException
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from chimera.errors import UserError
from chimera.paths import EXPERIMENTS


class ExperimentsOnSearchPath(SearchPathPlugin):
    """Makes `experiments/` a config source of its own.

    A plugin, because Hydra's `glob(*)` does not see groups that only `hydra.searchpath` reaches:
    such a sweep launches no job and exits 0.
    """

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        search_path.append("chimera-experiments", f"file://{EXPERIMENTS}")


def register_experiments() -> None:
    """Tell Hydra of `experiments/`; once a process."""
    Plugins.instance().register(ExperimentsOnSearchPath)


class _hydra:  # noqa: N801 - used as a function would be
    """A Hydra of our own for a few composes, whatever Hydra is running around us."""

    def __init__(self, conf: Path) -> None:
        self.conf = conf

    def __enter__(self) -> None:
        self.before = GlobalHydra.instance().hydra
        GlobalHydra.instance().clear()
        register_experiments()
        initialize_config_dir(version_base="1.3", config_dir=str(self.conf)).__enter__()

    def __exit__(self, *_: object) -> None:
        GlobalHydra.instance().clear()
        if self.before is not None:
            GlobalHydra.instance().initialize(self.before)


def _hydra_compose(overrides: list[str]) -> DictConfig:
    try:
        return hydra_compose("config", overrides=overrides, return_hydra_config=True)
    except (HydraException, OmegaConfBaseException) as error:
        cause = error.__cause__ if isinstance(error, ConfigCompositionException) else error
        raise UserError(" ".join(str(cause or error).split())) from error
