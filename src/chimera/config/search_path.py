"""Call Hydra from Python, with `experiments/` on its search path."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.global_hydra import GlobalHydra
from hydra.core.plugins import Plugins
from hydra.errors import ConfigCompositionException, HydraException
from hydra.plugins.search_path_plugin import SearchPathPlugin
from hydra.types import RunMode
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from chimera.config.repository import keep_files
from chimera.config.roots import roots
from chimera.errors import UserError
from chimera.paths import CONF


class RootsOnSearchPath(SearchPathPlugin):
    """Add `experiments/` and the folders of plugins and of the user to Hydra's sources.

    The setting `hydra.searchpath` does not suffice: Hydra's `glob(*)` does not see its groups, and
    a sweep over such a group launches no job and exits with 0.
    """

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        for folder in roots()[1:]:  # the first is Hydra's primary one
            search_path.append("chimera", f"file://{folder}")


def register_roots() -> None:
    """Register the folders of `chimera.config.roots` with Hydra, for this process."""
    Plugins.instance().register(RootsOnSearchPath)


@contextmanager
def hydra_on(conf: Path = CONF) -> Iterator[Any]:
    """Initialise Hydra on the folder `conf`; restore the surrounding Hydra, if any, at exit."""
    before = GlobalHydra.instance().hydra
    GlobalHydra.instance().clear()
    register_roots()
    try:
        with initialize_config_dir(version_base="1.3", config_dir=str(conf)):
            keep_files()
            yield GlobalHydra.instance().hydra
    finally:
        GlobalHydra.instance().clear()
        if before is not None:
            GlobalHydra.instance().initialize(before)


@contextmanager
def one_line() -> Iterator[None]:
    """Turn errors of Hydra and OmegaConf into a `UserError` of one line."""
    try:
        yield
    except (HydraException, OmegaConfBaseException) as error:
        cause = error.__cause__ if isinstance(error, ConfigCompositionException) else error
        raise UserError(" ".join(str(cause or error).split())) from error


def composed(overrides: Sequence[str]) -> DictConfig:
    """Compose the configuration of these overrides, including Hydra's own node."""
    with one_line():
        return hydra_compose("config", overrides=list(overrides), return_hydra_config=True)


def defaults_list(overrides: Sequence[str]) -> Any:
    """List the files that these choices are composed from, in order, without composing them."""
    loader = GlobalHydra.instance().config_loader()
    with one_line():
        return loader.compute_defaults_list("config", list(overrides), RunMode.RUN)
