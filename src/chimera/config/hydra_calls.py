"""Call Hydra from Python: list the files of choices, build what a node with `_target_` names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import yaml
from hydra import initialize_config_dir
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import CachingConfigRepository, ConfigRepository
from hydra._internal.config_search_path_impl import ConfigSearchPathImpl
from hydra._internal.defaults_list import create_defaults_list
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.plugins import Plugins
from hydra.errors import ConfigCompositionException, HydraException, InstantiationException
from hydra.utils import instantiate
from omegaconf import OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from chimera.config.groups import roots
from chimera.errors import UserError
from chimera.paths import CONF


@contextmanager
def one_line() -> Iterator[None]:
    """Turn errors of Hydra, OmegaConf and YAML into a `UserError` of one line."""
    try:
        yield
    except MissingMandatoryValue as error:
        raise UserError(f"{error.full_key} has no value; write {error.full_key}=…") from error
    except (HydraException, OmegaConfBaseException, yaml.YAMLError, UnicodeDecodeError) as error:
        cause = error.__cause__ if isinstance(error, ConfigCompositionException) else error
        said = str(cause or error).partition("Config search path:")[0]
        raise UserError(" ".join(said.split())) from error


@cache
def _files() -> CachingConfigRepository:
    """Hydra's reader of all folders; it reads each file once in a process."""
    Plugins.instance()  # registers the reader of file://
    folders = ConfigSearchPathImpl()
    for folder in roots():
        folders.append("chimera", f"file://{folder}")
    return CachingConfigRepository(ConfigRepository(folders))


def listed_files(
    overrides: tuple[str, ...],
) -> tuple[dict[str, str], tuple[tuple[str, str, dict[str, Any]], ...]]:
    """The option of each group, and the files that these choices are composed of.

    Args:
        overrides: choices of groups.

    Returns:
        Option by group; group, package and contents of each file, in the order of composition.
    """
    with one_line():
        parsed = OverridesParser.create().parse_overrides(list(overrides))
        listed = create_defaults_list(
            _files(), "config", parsed, prepend_hydra=False, skip_missing=False
        )
    options = {g: o for g, o in listed.overrides.known_choices.items() if isinstance(o, str)}
    files = []
    for default in listed.defaults:
        loaded = default.config_path and _files().load_config(default.config_path)
        if loaded:
            contents: Any = OmegaConf.to_container(loaded.config)
            if not isinstance(contents, dict):
                raise UserError(f"{default.config_path}.yaml holds no mapping of keys to values")
            group = str(default.config_path).rpartition("/")[0]
            files.append((group, default.package or "", contents))
    return options, tuple(files)


@contextmanager
def hydra_on() -> Iterator[Any]:
    """Hydra itself with all folders, for what it shows and for tab completion."""
    with initialize_config_dir(version_base="1.3", config_dir=str(CONF)):
        hydra = GlobalHydra.instance().hydra
        loader = GlobalHydra.instance().config_loader()
        assert isinstance(loader, ConfigLoaderImpl)
        for folder in roots()[1:]:  # the first is Hydra's primary one
            loader.config_search_path.prepend("chimera", f"file://{folder}", anchor="schema")
        loader.repository = ConfigRepository(loader.config_search_path)
        yield hydra


def make(node: Any, **arguments: Any) -> Any:
    """Build a node of the configuration, and all nodes inside it.

    Hydra wraps what a constructor raises in an exception of its own, with a text of several lines.

    Args:
        node: plain containers with `_target_`.
        arguments: added to those of the node.

    Raises:
        UserError: a constructor refuses its arguments (a `UserError` or another `ValueError`).
        InstantiationException: anything else goes wrong in it.
    """
    try:
        return instantiate(node, **arguments, _convert_="all")
    except InstantiationException as error:
        if isinstance(error.__cause__, ValueError):  # which a UserError is
            raise UserError(str(error.__cause__)) from error
        raise
