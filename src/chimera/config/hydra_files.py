"""Call Hydra from Python: all configuration folders on its search path, each file read once.

Hydra makes the list of the files that a set of choices is composed of. For each list it reads about
ninety files anew, and makes a table of values for each `${…}` in a list of defaults, of which there
are none. Without both it takes a third of the time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from hydra import initialize_config_dir
from hydra._internal import defaults_list as hydra_defaults
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import ConfigRepository
from hydra._internal.config_search_path_impl import ConfigSearchPathImpl
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.default_element import InputDefault
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import ConfigCompositionException, HydraException
from hydra.plugins.config_source import ConfigResult
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from chimera.config.config_folders import roots
from chimera.errors import UserError
from chimera.paths import CONF


class KeptFiles(ConfigRepository):
    """Reads each file once in a process."""

    def __init__(self, search_path: ConfigSearchPath) -> None:
        self._results: dict[str, ConfigResult | None] = {}
        super().__init__(search_path)

    def __deepcopy__(self, memo: object) -> KeptFiles:
        # Hydra copies the repository because `hydra.searchpath`, which we do not use, changes it.
        return self

    def load_config(self, config_path: str) -> ConfigResult | None:
        """The file's contents; None if there is no such file."""
        if config_path not in self._results:
            self._results[config_path] = super().load_config(config_path)
        return self._results[config_path]


@cache
def _repository(folders: tuple[tuple[str | None, str | None], ...]) -> KeptFiles:
    search_path = ConfigSearchPathImpl()
    for provider, path in folders:
        search_path.append(str(provider), str(path))
    return KeptFiles(search_path)


_interpolations = hydra_defaults._create_interpolation_map


def _interpolations_if_any(
    overrides: hydra_defaults.Overrides, defaults_list: list[InputDefault], self_added: bool
) -> DictConfig:
    """Hydra's table of values for `${…}` in a list of defaults; empty if the list has none."""
    if any(default.is_interpolation() for default in defaults_list):
        return _interpolations(overrides, defaults_list, self_added)
    return OmegaConf.create()


@contextmanager
def hydra_on(conf: Path = CONF) -> Iterator[Any]:
    """Initialise Hydra on the folder `conf`; restore the surrounding Hydra, if any, at exit."""
    before = GlobalHydra.instance().hydra
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(version_base="1.3", config_dir=str(conf)):
            loader = _loader()
            for folder in roots()[1:]:  # the first is Hydra's primary one
                loader.config_search_path.prepend("chimera", f"file://{folder}", anchor="schema")
            folders = ((part.provider, part.path) for part in loader.config_search_path.get_path())
            loader.repository = _repository(tuple(folders))
            hydra_defaults._create_interpolation_map = _interpolations_if_any
            yield GlobalHydra.instance().hydra
    finally:
        GlobalHydra.instance().clear()
        if before is not None:
            GlobalHydra.instance().initialize(before)


def _loader() -> ConfigLoaderImpl:
    loader = GlobalHydra.instance().config_loader()
    assert isinstance(loader, ConfigLoaderImpl)
    return loader


@contextmanager
def one_line() -> Iterator[None]:
    """Turn errors of Hydra and OmegaConf into a `UserError` of one line."""
    try:
        yield
    except (HydraException, OmegaConfBaseException) as error:
        cause = error.__cause__ if isinstance(error, ConfigCompositionException) else error
        raise UserError(" ".join(str(cause or error).split())) from error


def listed_files(
    overrides: Sequence[str],
) -> tuple[dict[str, str], list[tuple[str, str, dict[str, Any]]]]:
    """The option of each group, and the files that these choices are composed of.

    Args:
        overrides: choices of groups.

    Returns:
        Option by group; path without suffix, package and contents of each file, in the order of
        composition.
    """
    with hydra_on(), one_line():
        loader = _loader()
        listed = loader.compute_defaults_list("config", list(overrides), RunMode.RUN)
        options = {g: o for g, o in listed.overrides.known_choices.items() if isinstance(o, str)}
        files = []
        for default in listed.defaults:
            path = default.config_path
            if path is not None and not path.startswith(("hydra/", "_dummy")):
                loaded = loader.repository.load_config(path)
                assert loaded is not None  # it is in the list
                contents: Any = OmegaConf.to_container(loaded.config)
                files.append((path, default.package or "", contents))
    return {g: o for g, o in options.items() if not g.startswith("hydra/")}, files
