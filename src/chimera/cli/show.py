"""Show a configuration and how it is composed, and complete words in a shell.

`--cfg job` prints the config.yaml of the run: after the scale, `init_from` and the choices that
they imply, with interpolations resolved. Hydra's own `--cfg` prints what was composed before.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

import yaml

from chimera.config.compose import compose, final_choices, plain
from chimera.config.overrides import canonical, hint
from chimera.config.search_path import hydra_on
from chimera.errors import UserError
from chimera.program import VERSION, spelt
from chimera.rundir.identity import flatten


def show_config(overrides: Sequence[str], package: str | None = None) -> int:
    """Print the configuration that a run of these overrides writes to its config.yaml.

    Args:
        overrides: of the command line.
        package: dotted key of the part to print; None or `_global_` prints all.

    Raises:
        UserError: the overrides do not compose, or have no such part.
    """
    config: Any = plain(compose(list(overrides)))
    if package in (None, "_global_"):
        print(yaml.safe_dump(config, sort_keys=False), end="")
        return 0
    node = config
    for part in str(package).split("."):
        if not isinstance(node, dict) or part not in node:
            keys = {key.rpartition(".")[0] for key in flatten(config)} | set(config)
            raise UserError(f"--package {package} is no part{hint(str(package), keys - {''})}")
        node = node[part]
    print(f"# @package {package}")
    print(yaml.safe_dump(node, sort_keys=False), end="")
    return 0


def show_info(overrides: Sequence[str], topic: str) -> int:
    """Print Hydra's information about the composition of a run's choices.

    Args:
        overrides: of the command line.
        topic: one of `chimera.cli.flags.INFO`.

    Raises:
        UserError: the overrides do not compose.
    """
    topics = ["plugins", "searchpath", "defaults-tree", "defaults", "config"]
    for each in topics if topic == "all" else [topic]:
        if each == "config":
            show_config(overrides)
            continue
        choices = final_choices(canonical(list(overrides)))
        with hydra_on() as hydra:
            hydra.show_info(each, "config", choices)
    return 0


def complete(words: Sequence[str]) -> int:
    """Print the shell script of tab completion, or completions of `COMP_LINE`.

    Args:
        words: `install=bash`, `uninstall=bash` or `query=bash`; also `fish` and `zsh`.

    Raises:
        UserError: other words.
    """
    with hydra_on() as hydra:
        try:
            hydra.shell_completion("config", list(words))
        except ValueError as error:
            raise UserError(
                f"--shell-completion {' '.join(words)} is not known; write"
                f' eval "$({spelt("train")} -sc install=bash)", or fish or zsh in place of bash'
            ) from error
    return 0


def show_versions() -> int:
    """Print the versions of Chimera, Hydra and Lightning."""
    print("chimera", VERSION)
    for package in ("hydra-core", "lightning"):
        print(package, version(package))
    return 0
