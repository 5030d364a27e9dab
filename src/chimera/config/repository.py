"""Hydra's reader of configuration files, which keeps what it has read for the whole process.

Hydra reads and parses about ninety files for each composition, and each time anew: more than half
of the time of a composition. Half of the rest is for tables of interpolations that no list of
defaults has.
"""

from __future__ import annotations

import pickle
from functools import cache
from typing import Any

from hydra._internal import defaults_list as hydra_defaults
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import ConfigRepository
from hydra._internal.config_search_path_impl import ConfigSearchPathImpl
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.default_element import InputDefault
from hydra.core.global_hydra import GlobalHydra
from hydra.core.object_type import ObjectType
from hydra.plugins.config_source import ConfigResult, ConfigSource
from omegaconf import DictConfig, OmegaConf

_interpolations = hydra_defaults._create_interpolation_map


class _Copy(ConfigResult):
    """A file's contents; `config` is copied when it is first asked for.

    A composition changes the `config` of the files that it merges, and reads no more than the
    header and the defaults of three times as many.
    """

    def __init__(self, kept: ConfigResult) -> None:
        vars(self).update(vars(kept))
        self._pickled = vars(self).pop("config")

    def __getattr__(self, name: str) -> Any:
        if name != "config":
            raise AttributeError(name)
        self.config = pickle.loads(self._pickled)
        return self.config


class KeptRepository(ConfigRepository):
    """Reads each file once and returns copies, since a composition changes what it is given.

    Args:
        search_path: the folders; they stay as they are.
    """

    def __init__(self, search_path: ConfigSearchPath) -> None:
        self._results: dict[str, ConfigResult | None] = {}
        self._sources: dict[tuple[str, ObjectType | None], ConfigSource | None] = {}
        super().__init__(search_path)

    def __deepcopy__(self, memo: object) -> KeptRepository:
        # Hydra copies the repository because `hydra.searchpath`, which we do not use, changes it.
        return self

    def load_config(self, config_path: str) -> ConfigResult | None:
        """A copy of the file's contents; None if there is no such file."""
        if config_path not in self._results:
            result = super().load_config(config_path)
            if result is not None:
                # Unpickling takes a sixth of the time of a deep copy.
                result.config = pickle.dumps(result.config)  # type: ignore[assignment]
            self._results[config_path] = result
        kept = self._results[config_path]
        return None if kept is None else _Copy(kept)

    def _find_object_source(
        self, config_path: str, object_type: ObjectType | None
    ) -> ConfigSource | None:
        key = config_path, object_type
        if key not in self._sources:
            self._sources[key] = super()._find_object_source(config_path, object_type)
        return self._sources[key]


def keep_files() -> None:
    """Let the Hydra that is initialised now read through the repository of this process."""
    loader = GlobalHydra.instance().config_loader()
    assert isinstance(loader, ConfigLoaderImpl)
    folders = ((part.provider, part.path) for part in loader.config_search_path.get_path())
    loader.repository = _repository(tuple(folders))
    hydra_defaults._create_interpolation_map = _interpolations_if_any


def _interpolations_if_any(
    overrides: hydra_defaults.Overrides, defaults_list: list[InputDefault], self_added: bool
) -> DictConfig:
    """Hydra's table of values for `${…}` in a list of defaults; empty if the list has none."""
    if any(default.is_interpolation() for default in defaults_list):
        return _interpolations(overrides, defaults_list, self_added)
    return OmegaConf.create()


@cache
def _repository(folders: tuple[tuple[str | None, str | None], ...]) -> KeptRepository:
    search_path = ConfigSearchPathImpl()
    for provider, path in folders:
        search_path.append(str(provider), str(path))
    return KeptRepository(search_path)
