"""Hydra's reader of configuration files, which keeps what it has read for the whole process.

Hydra reads and parses about ninety files for each composition, and each time anew: more than half
of the time of a composition.
"""

from __future__ import annotations

import copy
from functools import cache

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import ConfigRepository
from hydra._internal.config_search_path_impl import ConfigSearchPathImpl
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.global_hydra import GlobalHydra
from hydra.core.object_type import ObjectType
from hydra.plugins.config_source import ConfigResult, ConfigSource


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
            self._results[config_path] = super().load_config(config_path)
        kept = self._results[config_path]
        if kept is None:
            return None
        result = copy.copy(kept)
        result.config = copy.deepcopy(kept.config)
        return result

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


@cache
def _repository(folders: tuple[tuple[str | None, str | None], ...]) -> KeptRepository:
    search_path = ConfigSearchPathImpl()
    for provider, path in folders:
        search_path.append(str(provider), str(path))
    return KeptRepository(search_path)
